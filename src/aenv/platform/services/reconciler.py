"""Keeps one service running: as many replicas as are wanted, of what is wanted, each of them healthy.

It looks again and again at what there is and at what there should be, and does the next step from the one to the
other. So there is no step that must not fail, and a server that starts anew goes on where the last one was.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic_core import from_json

from aenv.errors import AEnvError, InstanceEnded, NotFound, Overloaded
from aenv.http.client import HttpClient
from aenv.http.url import ServerUrl
from aenv.isolation.files.volumes import Volume
from aenv.platform.access.platform_tokens import OWNER
from aenv.platform.instances.instance_record import STARTING, InstanceRecord, Replica
from aenv.platform.instances.lifecycle import Instances
from aenv.platform.instances.reserved_labels import LABEL, REVISION_LABEL
from aenv.platform.services.service_store import ServiceRecord, ServiceSpec, ServiceState, ServiceStore
from aenv.platform.services.storages import Storages
from aenv.schema import paths
from aenv.schema.instances import EnvInstance, EnvInstanceCreateRequest, EnvStatus, InstanceEvent, ServiceStatus
from aenv.sdk.environment import HEALTHY
from aenv.tracing.logging import getLogger

log = getLogger("services")

FOREVER = "876000h"
"""A replica's time to live."""
ROUND, BUSY_ROUND = 1.0, 0.1
"""Seconds between two looks, and between two while something is under way."""
HEALTH_EVERY, HEALTH_SECONDS = 5.0, 5.0
HEALTH_BYTES = 64 * 1024
SAID = 1000
"""Characters of what a health check says that are kept."""
START_SECONDS = 120.0
"""A replica that is not healthy so long after it was started is a failed one."""
SICK_SECONDS = 30.0
"""One that was healthy and has not been for so long is started anew."""
BACK_OFF, BACK_OFF_MOST = 0.5, 60.0
SETTLED = 30.0
"""A replica that has lived for so long has not crashed at once."""
UPDATE_TRIES = 3
FAILED_AFTER = 3
QUEUED = 600.0
STORAGE_EVERY = 10.0
EVENTS = 64


@dataclass(eq=False, slots=True)
class ReplicaHandle:
    """One replica."""

    revision: int
    read_only: bool = False
    """Whether it may only read its storage."""
    wish: EnvInstanceCreateRequest | None = None
    making: asyncio.Task[EnvInstance] | None = None
    id: str = ""
    since: float = 0.0
    healthy: bool = False
    was_healthy: float = 0.0
    checked: float = 0.0
    checking: asyncio.Task[None] | None = None
    draining: asyncio.Task[None] | None = None
    busy: int = 0
    """Requests that are under way."""
    used: int = 0
    """When it was last given one, in no unit."""
    said: str = ""
    """What its last check of health said, if that was not good."""

    @property
    def ready(self) -> bool:
        """Whether requests may go to it."""
        return self.healthy and self.draining is None


class ServiceReconciler:
    """One service, on the server that runs it."""

    def __init__(
        self, record: ServiceRecord, instances: Instances, book: ServiceStore, storages: Storages, grace: float
    ) -> None:
        self.record = record
        self.state = ServiceState()
        self.events: deque[InstanceEvent] = deque(maxlen=EVENTS)
        self.copies: list[ReplicaHandle] = []
        self.told = asyncio.Event()
        """Set, and another one taken, after every look."""
        self.looked = False
        """Whether it knows its replicas."""
        self.last_ended = ""
        """The id of the replica that ended last, for its log."""
        self.ended_at = 0.0
        self._instances = instances
        self._book = book
        self._storages = storages
        self._grace = grace
        self._noted: ServiceState | None = None
        self._wake = asyncio.Event()
        self._crashes = 0
        self._tries = 0
        self._not_before = 0.0
        self._why: str | None = None
        self._was_ready = False
        self._full = False
        self._measured = 0.0
        self._folder: str | None = None
        self._running: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self) -> None:
        """Begin."""
        self._running = asyncio.create_task(self._run())

    async def stop(self, *, ended: bool) -> None:
        """Keep it no more; with ``ended``, its replicas go as well."""
        tasks: list[asyncio.Task[Any] | None] = [self._running, *self._tasks]
        if not ended:
            tasks += [copy.making for copy in self.copies]
        there = [task for task in tasks if task is not None]
        for task in there:
            task.cancel()
        await asyncio.gather(*there, return_exceptions=True)
        if ended:
            await asyncio.gather(*(self._end(copy) for copy in self.copies))
        self.copies.clear()
        self.told.set()

    def wake(self) -> None:
        """Look now."""
        self._wake.set()

    def follow(self, record: ServiceRecord) -> None:
        """Something else is wanted."""
        if record.target != self.record.target:
            self._tries, self._not_before = 0, 0.0
        self.record = record
        self._wake.set()

    def note(self, kind: str, message: str = "") -> None:
        """Something happened to it."""
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.events.append(InstanceEvent(at=at, type=kind, message=message))

    def has(self, name: str, request_id: str) -> bool:
        """Whether an instance is one of its replicas, or one that is being made for it."""
        asked = [copy.wish.request_id for copy in self.copies if copy.wish is not None and not copy.id]
        return name in [copy.id for copy in self.copies] or request_id in asked

    def settled(self) -> bool:
        """Whether nothing is under way."""
        there = self.state.available == self.record.replicas and self.record.previous is None
        return self.state.status is ServiceStatus.FAILED or (there and self.state.status is ServiceStatus.RUNNING)

    # --- the loop

    async def _run(self) -> None:
        await self._find_again()
        while True:
            self._wake.clear()
            try:
                busy = await self._round()
            except AEnvError as error:
                log.warning("service %s: %s", self.record.id, error.message)
                busy = False
            except Exception:
                log.exception("service %s: a look at it failed", self.record.id)
                busy = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BUSY_ROUND if busy else ROUND):
                    await self._wake.wait()

    async def _find_again(self) -> None:
        """Replicas that are there already, of a server that was here before."""
        for found in self._instances.replicas():
            assert found.replica is not None
            if found.replica.service != self.record.id or found.account != self.record.account:
                continue
            with contextlib.suppress(InstanceEnded):
                await self._instances.check(found)
                if found.status is EnvStatus.RUNNING:
                    self.copies.append(ReplicaHandle(found.replica.revision, id=found.id, since=time.monotonic()))
        self.looked = True

    async def _round(self) -> bool:
        """One look, and the next step; whether more is to come soon."""
        await self._measure()
        for copy in list(self.copies):
            await self._look_at(copy)
        await self._step()
        await self._tell()
        return any(copy.id and not copy.healthy and copy.draining is None for copy in self.copies)

    async def _look_at(self, copy: ReplicaHandle) -> None:
        now = time.monotonic()
        if copy.draining is not None:
            if copy.draining.done():
                self.copies.remove(copy)
            return
        if copy.making is not None:
            if not copy.making.done():
                return
            try:
                copy.id, copy.since = copy.making.result().id, now
            except AEnvError as error:
                await self._lost(copy, error.message, error)
                return
            except asyncio.CancelledError:
                await self._lost(copy, "it was cancelled", None)
                return
            finally:
                copy.making = None
        record = self._instances.peek(copy.id)
        try:
            if record is None:
                raise NotFound("it was deleted")
            if record.ref is None or await self._instances.engine.poll(record.ref) is not None:
                await self._instances.check(record)
        except (InstanceEnded, NotFound) as error:
            why = record.reason if record is not None and record.reason else error.message
            await self._lost(copy, f"replica {copy.id} ended: {why}", None)
            return
        if (now - copy.checked >= HEALTH_EVERY or not copy.healthy) and copy.checking is None:
            copy.checked = now
            copy.checking = self._task(self._check(copy, record))
        if not copy.healthy and now - (copy.was_healthy or copy.since) > (
            SICK_SECONDS if copy.was_healthy else START_SECONDS
        ):
            self._drain(copy, at_once=True)
            why = f"replica {copy.id} is not healthy: {copy.said or 'no answer'}"
            await self._lost(copy, why, None, final=not copy.was_healthy)

    async def _check(self, copy: ReplicaHandle, record: InstanceRecord) -> None:
        """Ask it for its health."""
        try:
            copy.said = await _ill(record)
            good = not copy.said
            if good:
                copy.was_healthy = time.monotonic()
            if good != copy.healthy:
                copy.healthy = good
                self._wake.set()
        finally:
            copy.checking = None

    # --- what to do next

    async def _step(self) -> None:
        record = self.record
        exclusive = record.storage is not None
        staying = [copy for copy in self.copies if copy.draining is None]
        new = [copy for copy in staying if self._fits(copy)]
        old = [copy for copy in staying if not self._fits(copy)]
        ready = sum(1 for copy in new if copy.ready)
        wanted = record.replicas
        if exclusive:
            for copy in old:  # its storage has one writer, so there is no other way
                self._drain(copy)
            if len(self.copies) > len(new):
                return
        else:
            keep = max(0, wanted - ready) if wanted else 0
            for copy in sorted(old, key=lambda copy: (copy.ready, copy.since))[: max(0, len(old) - keep)]:
                self._drain(copy)
                old.remove(copy)
        surplus = sorted(new, key=lambda copy: (copy.ready, -copy.since))[: max(0, len(new) - wanted)]
        for copy in surplus:
            self._drain(copy)
            new.remove(copy)
        missing = wanted - len(new)
        if old:  # while an update is rolled out there are a few more than are wanted
            missing = min(missing, wanted + max(1, wanted // 4) - len(new) - len(old))
        if missing > 0 and time.monotonic() >= self._not_before:
            for _ in range(missing):
                await self._begin()
        if record.previous is not None and not old and len(new) == wanted and ready == wanted:
            await self._done()

    def _fits(self, copy: ReplicaHandle) -> bool:
        return copy.revision == self.record.target.revision and copy.read_only == self._full

    async def _begin(self) -> None:
        record, spec = self.record, self.record.target
        volume = None
        if record.storage is not None:
            if self._folder is None:
                await self._measure(now=True)
            assert self._folder is not None
            volume = Volume(self._folder, record.storage.mount_path, self._full)
        wish = EnvInstanceCreateRequest(
            envName=spec.env,
            ttl=FOREVER,
            environment_variables=spec.variables,
            owner=record.owner,
            labels={**(record.labels or {}), LABEL: record.id, REVISION_LABEL: str(spec.revision)},
            network=record.network,
            request_id=f"{record.id}/{secrets.token_hex(6)}",
            keep_alive=True,
            queue_timeout=QUEUED,
        )
        replica = Replica(record.cpus, record.memory, record.disk, volume, record.id, spec.revision)
        copy = ReplicaHandle(spec.revision, self._full, wish, since=time.monotonic())
        copy.making = asyncio.create_task(self._instances.create(wish, record.caller, replica))
        copy.making.add_done_callback(lambda task: self._wake.set())
        self.copies.append(copy)

    async def _lost(self, copy: ReplicaHandle, why: str, error: AEnvError | None, *, final: bool = False) -> None:
        """One failed to come, or went; ``final``: another one like it would not be any better."""
        final = final or (error is not None and not error.retryable)
        if copy.draining is None:
            self.copies.remove(copy)
        if copy.id:
            self.last_ended = copy.id
        now = self.ended_at = time.monotonic()
        if error is None and copy.was_healthy and now - copy.since > SETTLED:
            self._crashes = 0
        if copy.was_healthy or copy.id:
            self.state.restarts += 1
            self._instances.metrics.count("service_restarts_total", env_name=self.record.target.env.partition("@")[0])
        self._why = why
        self.note("ended" if copy.id else "failed", why)
        log.warning("service %s: %s", self.record.id, why.partition("\n")[0])
        crowded = isinstance(error, Overloaded)
        if not crowded and self.record.previous is not None and copy.revision == self.record.target.revision:
            self._tries += 1
            if final or self._tries >= UPDATE_TRIES:
                await self._take_back(why)
                return
        if not crowded:
            self._crashes += 1
            if final:
                self._crashes = max(self._crashes, FAILED_AFTER)
        pause = min(BACK_OFF_MOST, BACK_OFF * 2 ** min(self._crashes, 10))
        if self._crashes > 1 or error is not None:
            self._not_before = now + pause

    async def _take_back(self, why: str) -> None:
        """The update does not work: what ran before it goes on."""

        def change(record: ServiceRecord) -> ServiceRecord:
            if record.previous is None or record.target != self.record.target:
                return record
            said = f"the update to {_named(record.target, record.previous)} failed, and was taken back: {why}"
            return record.model_copy(update={"target": record.previous, "previous": None, "failed": said})

        self.follow(await self._book.change(self.record.id, change))
        self.note("update-failed", why)
        self._why, self._crashes, self._not_before = None, 0, 0.0

    async def _done(self) -> None:
        """The update is rolled out."""

        def change(record: ServiceRecord) -> ServiceRecord:
            if record.target != self.record.target:
                return record
            return record.model_copy(update={"previous": None, "failed": None})

        self.follow(await self._book.change(self.record.id, change))
        self.note("updated", f"revision {self.record.target.revision}, {self.record.target.env}")
        self._why = None

    # --- ending replicas

    def _drain(self, copy: ReplicaHandle, *, at_once: bool = False) -> None:
        """Give it no more requests, let it finish those that it has, and end it."""
        if copy.draining is None:
            copy.draining = self._task(self._drained(copy, 0.0 if at_once else self._grace))
            copy.draining.add_done_callback(lambda task: self._wake.set())

    async def _drained(self, copy: ReplicaHandle, grace: float) -> None:
        until = time.monotonic() + grace
        while copy.busy and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await self._end(copy)

    async def _end(self, copy: ReplicaHandle) -> None:
        name = copy.id
        if copy.making is not None and copy.wish is not None:
            record = self._instances.find_by_request(copy.wish, self.record.caller)
            name = record.id if record is not None else ""
            copy.making.cancel()
        if name:
            with contextlib.suppress(NotFound, InstanceEnded):
                await self._instances.delete(name, OWNER, f"a replica of service {self.record.id} less")
        if copy.making is not None:
            await asyncio.gather(copy.making, return_exceptions=True)

    # --- storage

    async def _measure(self, *, now: bool = False) -> None:
        """Look how much its storage holds: too much makes it read-only."""
        claim = self.record.storage
        if claim is None or (not now and time.monotonic() - self._measured < STORAGE_EVERY):
            return
        began = time.monotonic()
        storage = await self._storages.get(self.record.account, claim.name)
        if storage is None:
            raise NotFound(f"storage {claim.name} of service {self.record.id} is not there")
        self._folder = storage.folder
        self.state.storage_used = await self._storages.used(storage)
        spent = time.monotonic() - began
        self._measured = time.monotonic() + max(0.0, 20 * spent - STORAGE_EVERY)  # a large one takes a while to count
        full = self.state.storage_used > storage.bytes
        if full != self._full:
            self._full = full
            self.note("storage-full" if full else "storage-writable", f"{self.state.storage_used} of {storage.size}")

    def measure_now(self) -> None:
        """It may be fuller than is known."""
        self._measured = 0.0
        self._wake.set()

    # --- what others see

    async def _tell(self) -> None:
        state = self.state.model_copy()
        state.available = sum(1 for copy in self.copies if copy.ready)
        state.instances = [copy.id for copy in self.copies if copy.id and copy.draining is None]
        state.status, state.reason = self._status(state.available)
        if not self._was_ready and state.available >= self.record.replicas:
            self._was_ready = True
            self.note("running")
        if state.available >= self.record.replicas and self.record.previous is None:
            if all(time.monotonic() - copy.since > SETTLED for copy in self.copies):
                self._crashes = 0
            self._why = None
        changed, self.state = state != self._noted, state
        told, self.told = self.told, asyncio.Event()
        told.set()
        if changed:
            await self._book.note(self.record.id, state)
            self._noted = state

    def _status(self, available: int) -> tuple[ServiceStatus, str | None]:
        record = self.record
        if self._full and available:
            said = (
                f"its storage holds {self.state.storage_used} bytes, more than its size: it is read-only until it is "
            )
            return ServiceStatus.RUNNING, f"{said}given more"
        if record.previous is not None:
            return ServiceStatus.UPDATING, self._why
        if available >= record.replicas:
            return ServiceStatus.RUNNING, record.failed
        if available == 0 and self._crashes >= FAILED_AFTER:
            return ServiceStatus.FAILED, self._why
        if self._was_ready and available:
            return ServiceStatus.RUNNING, self._why or record.failed
        waiting = [copy for copy in self.copies if copy.making is not None and copy.wish is not None]
        asked = [self._instances.find_by_request(copy.wish, record.caller) for copy in waiting if copy.wish is not None]
        pending = [one for one in asked if one is not None and one.status is EnvStatus.PENDING]
        if pending and len(pending) == len(self.copies):
            return ServiceStatus.PENDING, pending[0].reason
        return ServiceStatus.CREATING, self._why

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _ill(record: InstanceRecord) -> str:
    """What is wrong with its health; nothing: it is fine."""
    if record.ref is None or record.status in STARTING:
        return "it is being made"
    http = HttpClient(ServerUrl.parse(record.ref.data_url), token=record.ref.token)
    try:
        answer = await http.request("GET", paths.HEALTH, timeout=HEALTH_SECONDS, limit=HEALTH_BYTES)
        body = from_json(answer.body)
    except AEnvError as error:
        return error.message
    except ValueError:
        return "its health check does not answer with JSON"
    finally:
        http.close()
    data = body.get("data") if isinstance(body, dict) else None
    status = data.get("status", HEALTHY[0]) if isinstance(data, dict) else HEALTHY[0]
    if answer.status == 200 and status in HEALTHY:
        return ""
    said = data.get("message") or status if isinstance(data, dict) else answer.status
    return f"its health check says '{str(said)[:SAID]}'"


def _named(target: ServiceSpec, previous: ServiceSpec) -> str:
    return target.env if target.env != previous.env else f"revision {target.revision}"
