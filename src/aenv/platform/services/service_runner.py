"""Runs the services of this server: one reconciler each, taking over services whose server is gone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter as Tally

from aenv.errors import AEnvError, InstanceEnded, NotFound
from aenv.platform.instances.ledger import Ledger
from aenv.platform.instances.lifecycle import Instances
from aenv.platform.services.reconciler import ServiceReconciler
from aenv.platform.services.service_store import ServiceRecord, ServiceStore
from aenv.platform.services.storages import Storages
from aenv.tracing.logging import getLogger

log = getLogger("services")

WATCH_INTERVAL = 5.0
"""Seconds between two checks for changed records, and for services whose server is gone."""
MAX_LOCKS = 1000
"""Locks of services before unused ones are dropped."""


class ServiceRunner:
    """The reconcilers of the services that this server runs."""

    def __init__(
        self, instances: Instances, store: ServiceStore, storages: Storages, ledger: Ledger, grace: float
    ) -> None:
        """``grace``: seconds that a replica has to finish its requests."""
        self.host = socket.gethostname()
        self._instances = instances
        self._store = store
        self._storages = storages
        self._ledger = ledger
        self._grace = grace
        self._reconcilers: dict[str, ServiceReconciler] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._watch_task: asyncio.Task[None] | None = None
        instances.metrics.gauge("services", self._by_status)
        instances.metrics.gauge("service_replicas", self._replicas)

    @property
    def server(self) -> str:
        """Id of this server."""
        return self._ledger.server.id

    def get(self, name: str) -> ServiceReconciler | None:
        """Return the reconciler of a service, if this server runs it."""
        return self._reconcilers.get(name)

    async def open(self) -> int:
        """Take over services whose server is gone; return how many."""
        taken = await self._take_over(first=True)
        self._watch_task = asyncio.create_task(self._watch())
        return taken

    async def close(self, *, hand_over: bool = False) -> None:
        """Stop reconciling. The records stay, for the next server.

        ``hand_over``: keep the replicas running, for the next server with the same name.
        """
        if self._watch_task is not None:
            self._watch_task.cancel()
            await asyncio.gather(self._watch_task, return_exceptions=True)
        reconcilers, self._reconcilers = self._reconcilers, {}
        await asyncio.gather(*(reconciler.stop(ended=False) for reconciler in reconcilers.values()))
        for name in () if hand_over else reconcilers:
            try:
                await self._store.change(name, self._released)
            except AEnvError as error:
                log.warning("service %s: %s", name, error.message)

    def start(self, record: ServiceRecord) -> ServiceReconciler:
        """Start to run a service."""
        reconciler = ServiceReconciler(record, self._instances, self._store, self._storages, self._grace)
        self._reconcilers[record.id] = reconciler
        reconciler.start()
        return reconciler

    async def end(self, record: ServiceRecord) -> None:
        """End a service that is to be deleted: its replicas, its claim on a storage, its record."""
        reconciler = self._reconcilers.pop(record.id, None)
        if reconciler is not None:
            await reconciler.stop(ended=True)
        if record.storage is not None:
            await self._storages.release(record.account, record.storage.name, record.id, delete=record.ending_storage)
        await self._store.remove(record.id)
        log.info("service %s is deleted", record.id)

    def can_take(self, record: ServiceRecord) -> bool:
        """Return True if no server runs it, and this one can."""
        return record.server == "" and record.host in ("", self.host)

    def lock(self, name: str) -> asyncio.Lock:
        """Return the lock that serialises changes of a service on this server."""
        if name not in self._locks and len(self._locks) > MAX_LOCKS:
            self._locks = {key: lock for key, lock in self._locks.items() if lock.locked()}
        return self._locks.setdefault(name, asyncio.Lock())

    async def end_orphan_replicas(self) -> None:
        """End replicas on this server whose service is deleted, or is run by another server now."""
        for record in self._instances.replicas():
            assert record.replica is not None
            service, request_id = record.replica.service, record.request.request_id or ""
            reconciler = self._reconcilers.get(service)
            if reconciler is None or (reconciler.adopted and not reconciler.owns(record.id, request_id)):
                with contextlib.suppress(NotFound, InstanceEnded):
                    await self._instances.delete(record.id, why=f"service {service} no longer needs this replica")

    def _released(self, record: ServiceRecord) -> ServiceRecord:
        mine = record.server == self.server
        return record.model_copy(update={"server": ""}) if mine else record

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_INTERVAL)
            try:
                await self._take_over()
                await self.end_orphan_replicas()
            except AEnvError as error:
                log.warning("cannot read the services: %s", error.message)
            except Exception:
                log.exception("taking over services failed")

    async def _take_over(self, *, first: bool = False) -> int:
        """Apply changed records of this server's services, and take over those that no server runs.

        ``first``: records with this server's id are those of its predecessor with the same id.
        """
        taken, mine = 0, self.server
        for record in await self._store.all():
            if record.server == mine and record.id in self._reconcilers:
                if record.ending:
                    await self.end(record)
                elif record != self._reconcilers[record.id].record and not self.lock(record.id).locked():
                    self._reconcilers[record.id].set_record(record)
                continue
            free = first if record.server == mine else await self._ledger.is_server_gone(record.server)
            if record.host not in ("", self.host) or not free:
                continue
            before = record.server

            def take(record: ServiceRecord, before: str = before) -> ServiceRecord:
                return record.model_copy(update={"server": mine}) if record.server == before else record

            record = await self._store.change(record.id, take)
            if record.server != mine:
                continue
            if record.ending:
                await self.end(record)
                continue
            reconciler = self.start(record)
            reconciler.state.restarts = (await self._store.state(record.id)).restarts
            reconciler.add_event("taken-over", f"by server {mine}")
            taken += 1
        return taken

    def _by_status(self) -> list[tuple[dict[str, str], float]]:
        tally = Tally((k.record.target.env.partition("@")[0], str(k.state.status)) for k in self._reconcilers.values())
        return [({"env_name": env, "status": status}, float(count)) for (env, status), count in tally.items()]

    def _replicas(self) -> list[tuple[dict[str, str], float]]:
        reconcilers = self._reconcilers.values()
        wanted = sum(reconciler.record.replicas for reconciler in reconcilers)
        return [
            ({"state": "wanted"}, float(wanted)),
            ({"state": "available"}, float(sum(reconciler.state.available for reconciler in reconcilers))),
        ]
