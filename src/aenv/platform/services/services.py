"""Services: environments that run until they are ended, in replicas behind one URL."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import secrets
import socket
import time
from collections import Counter as Tally
from datetime import UTC, datetime
from pathlib import Path

from aenv.errors import AEnvError, Conflict, InstanceEnded, InvalidArguments, NotFound, QuotaExceeded, UsageError
from aenv.http.messages import Answer, Request
from aenv.isolation.files import volumes
from aenv.platform.access.platform_tokens import Caller
from aenv.platform.gateway.peers import Peers
from aenv.platform.instances import request_checks
from aenv.platform.instances.env_sources import Sources
from aenv.platform.instances.instance_record import Replica, limits_of
from aenv.platform.instances.ledger import Ledger
from aenv.platform.instances.lifecycle import Instances
from aenv.platform.instances.reserved_labels import refuse_reserved
from aenv.platform.services.reconciler import ServiceReconciler
from aenv.platform.services.service_store import ServiceClaim, ServiceRecord, ServiceSpec, ServiceState, ServiceStore
from aenv.platform.services.storages import Storages
from aenv.project import quantities
from aenv.project.locate import Located
from aenv.schema.instances import (
    Env,
    EnvInstanceCreateRequest,
    EnvService,
    EnvServiceCreateRequest,
    EnvServiceUpdateRequest,
    InstanceEvent,
    ServiceStatus,
)
from aenv.schema.names import check_name
from aenv.tracing.logging import getLogger

log = getLogger("services")

WATCH_SECONDS = 5.0
"""How often it is looked whether others have changed what is wanted, or have left a service behind."""
MOST = 1000
"""Replicas of one service."""
NAME_LENGTH = 63
MOUNT_PATH = "/home/admin/data"
_IMAGE = re.compile(r"(?:.*/)?(?P<name>[a-z0-9-]+)[:@](?P<version>[0-9A-Za-z.+-]+)")


class Services:
    """All services of this platform, and the keepers of those that this server runs."""

    def __init__(
        self,
        instances: Instances,
        sources: Sources,
        ledger: Ledger,
        folder: Path,
        *,
        grace: float = 10.0,
        peers: Peers | None = None,
    ) -> None:
        """``folder``: where storages are. ``grace``: seconds that a replica has to finish its requests."""
        self._instances = instances
        self._sources = sources
        self._ledger = ledger
        self._book = ServiceStore(ledger.store)
        self._storages = Storages(ledger.store, folder)
        self._grace = grace
        self._peers = peers
        self._host = socket.gethostname()
        self._keepers: dict[str, ServiceReconciler] = {}
        self._changing: dict[str, asyncio.Lock] = {}
        self._watching: asyncio.Task[None] | None = None
        instances.metrics.gauge("services", self._by_status)
        instances.metrics.gauge("service_replicas", self._replicas)

    async def open(self) -> int:
        """Run again what servers before this one ran; how many services that was."""
        taken = await self._take_over(first=True)
        self._watching = asyncio.create_task(self._watch())
        return taken

    async def close(self, *, hand_over: bool = False) -> None:
        """Run nothing any more. The records stay, for the next server.

        ``hand_over``: the replicas stay as well, and the next server that is called as this one goes on with them.
        """
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        keepers, self._keepers = self._keepers, {}
        await asyncio.gather(*(keeper.stop(ended=False) for keeper in keepers.values()))
        for name in () if hand_over else keepers:
            try:
                await self._book.change(name, self._left)
            except AEnvError as error:
                log.warning("service %s: %s", name, error.message)

    # --- what callers ask for

    async def create(self, wish: EnvServiceCreateRequest, caller: Caller) -> EnvService:
        """A new one, whose replicas are being made. The same ``request_id`` again gives the same one."""
        refuse_reserved(wish.labels)
        request_checks.check_variables(wish.environment_variables)
        request_checks.check_labels(wish.labels, wish.replicas or 1)
        for field, text in (("envName", wish.envName), ("owner", wish.owner), ("request_id", wish.request_id)):
            request_checks.check_text(field, text or "")
        project = await self._sources.find(EnvInstanceCreateRequest(envName=wish.envName), caller)
        env = _env_of(project, wish.envName)
        name = _name(wish.service_name, env, f"{caller.name}/{wish.request_id}" if wish.request_id else "")
        known = await self._book.get(name)
        if (
            known is not None
            and wish.request_id
            and (known.account, known.request_id) == (caller.name, wish.request_id)
        ):
            return _shown(known, await self._state(name))
        if known is not None:
            raise Conflict(f"there is a service {name} already; choose another name")
        replicas = _replicas(wish.replicas or 1)
        own = _own(wish)
        self._instances.quota.admit(caller, replicas)
        await self._instances.refresh_remote_usage(caller)
        self._instances.quota.check(caller, own.apply_to(limits_of(project)), replicas)
        claim = await self._claim(wish, caller, name, env.partition("@")[0], replicas)
        now = _now()
        record = ServiceRecord(
            id=name, account=caller.name, role=caller.role, token_id=caller.token_id, allowance=caller.allowance,
            request_id=wish.request_id, owner=wish.owner, labels=wish.labels, network=wish.network,
            created_at=now, updated_at=now, replicas=replicas,
            target=ServiceSpec(env=env, variables=wish.environment_variables or {}),
            cpus=own.cpus, memory=own.memory, disk=own.disk, storage=claim, host=self._host if claim else "",
            server=self._ledger.server.id,
        )  # fmt: skip
        try:
            await self._book.add(record)
        except AEnvError:
            if claim is not None:
                await self._storages.let_go(caller.name, claim.name, name, delete=False)
            raise
        self._keep(record).note("created", f"by {caller.name}")
        self._count("create", env)
        return _shown(record, ServiceState())

    async def get(self, name: str, caller: Caller, wait: float = 0.0) -> EnvService:
        """One of them; ``wait``: up to so many seconds for what is under way to be done."""
        until = time.monotonic() + wait
        while True:
            record = await self._find(name, caller)
            keeper = self._keepers.get(name)
            left = until - time.monotonic()
            if left <= 0 or keeper is None or keeper.settled():
                return _shown(record, await self._state(name))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await keeper.told.wait()

    async def of_env(self, env: str, caller: Caller) -> list[EnvService]:
        """Those of one environment (``name`` or ``name@version``), or all (``*``)."""
        mine = [record for record in await self._book.all() if caller.may_see(record.account)]
        found = [r for r in mine if env in ("*", r.target.env, r.target.env.partition("@")[0])]
        return [_shown(record, await self._state(record.id)) for record in found]

    async def update(self, name: str, wish: EnvServiceUpdateRequest, caller: Caller) -> EnvService:
        """Change what is wanted; it is rolled out from then on."""
        request_checks.check_variables(wish.environment_variables)
        async with self._lock(name):
            record = await self._find(name, caller)
            env = await self._version(record, wish)
            variables = {**record.target.variables, **(wish.environment_variables or {})}
            if wish.replicas is not None:
                self._check_scale(record, _replicas(wish.replicas, least=0))
            if wish.storage_size is not None:
                if record.storage is None:
                    raise UsageError(f"service {name} has no storage")
                await self._storages.grow(record.account, record.storage.name, _size("storage_size", wish.storage_size))

            def change(record: ServiceRecord) -> ServiceRecord:
                if record.ending:
                    raise NotFound(f"service {name} is being deleted")
                changed: dict[str, object] = {}
                if wish.replicas is not None:
                    changed["replicas"] = wish.replicas
                if wish.storage_size is not None and record.storage is not None:
                    changed["storage"] = record.storage.model_copy(update={"size": wish.storage_size})
                if (env, variables) != (record.target.env, record.target.variables):
                    number = record.newest + 1
                    target = ServiceSpec(revision=number, env=env, variables=variables)
                    changed |= {"target": target, "previous": record.previous or record.target, "newest": number}
                    changed["failed"] = None
                return record.model_copy(update={**changed, "updated_at": _now()}) if changed else record

            record = await self._book.change(name, change)
            keeper = self._keepers.get(name)
            if keeper is not None:
                keeper.note("update", f"by {caller.name}")
                keeper.follow(record)
                if wish.storage_size is not None:
                    keeper.measure_now()
        self._count("update", record.target.env)
        return _shown(record, await self._state(name))

    async def delete(self, name: str, caller: Caller, *, storage: bool) -> None:
        """End one; its storage stays unless it is to go too."""
        async with self._lock(name):
            record = await self._find(name, caller)
            record = await self._book.change(
                name, lambda record: record.model_copy(update={"ending": True, "ending_storage": storage})
            )
            if name in self._keepers or self._may_take(record):
                await self._end(record)
        self._count("delete", record.target.env)

    async def events(self, name: str, caller: Caller) -> list[InstanceEvent]:
        """What happened to one, as far as this server knows."""
        await self._find(name, caller)
        keeper = self._keepers.get(name)
        return list(keeper.events) if keeper is not None else []

    async def keeper(self, name: str, caller: Caller) -> ServiceReconciler:
        """That of a service which this server runs.

        Raises:
            NotFound: there is no such service of the caller's.
            Conflict: another server runs it.
        """
        keeper = self._keepers.get(name)
        if keeper is not None and caller.may_see(keeper.record.account):
            return keeper
        record = await self._find(name, caller)
        raise Conflict(f"service {name} is run by another server, {record.server or 'that is still to come'}")

    async def elsewhere(self, name: str, request: Request, caller: Caller) -> Answer | None:
        """What the server answers that runs it, where that is another one."""
        if self._peers is None or name in self._keepers:
            return None
        record = await self._find(name, caller)
        return await self._peers.answer_at(record.server, request, f"of service {name}")

    def keeps(self, keeper: ServiceReconciler) -> bool:
        """Whether it is still there."""
        return self._keepers.get(keeper.record.id) is keeper

    def logs(self, keeper: ServiceReconciler) -> str:
        """The last of what its replicas wrote, and the one that ended last; each line with the replica's id."""
        said = ""
        for name in dict.fromkeys([keeper.last_ended, *(copy.id for copy in keeper.copies)]):
            with contextlib.suppress(NotFound):
                text = self._instances.logs(name)
                said += "".join(f"[{name}] {line}\n" for line in text.splitlines())
        return said

    def log_since(self, name: str, position: int) -> tuple[str, int]:
        """What one of its replicas wrote since."""
        return self._instances.log_since(name, position)

    # --- inside

    async def _find(self, name: str, caller: Caller) -> ServiceRecord:
        record = await self._book.get(name) if name.isascii() and name.isprintable() else None
        if record is None or not caller.may_see(record.account):
            raise NotFound(f"no service {name[:100]}")
        return record

    async def _state(self, name: str) -> ServiceState:
        keeper = self._keepers.get(name)
        return keeper.state if keeper is not None else await self._book.state(name)

    async def _claim(
        self, wish: EnvServiceCreateRequest, caller: Caller, service: str, env: str, replicas: int
    ) -> ServiceClaim | None:
        if wish.pvc_name is None and wish.storage_size is None:
            return None
        if not self._instances.engine.capabilities.volumes:
            raise UsageError("this platform's engine cannot give an instance a storage")
        if replicas != 1:
            raise InvalidArguments(f"replicas: a service with storage has 1, not {replicas}: a storage has one writer")
        path = wish.mount_path or MOUNT_PATH
        wrong = volumes.target_problem(path)
        if wrong is not None:
            raise InvalidArguments(f"mount_path: {wrong}")
        name = wish.pvc_name or env
        try:
            check_name(name)
        except ValueError as error:
            raise InvalidArguments(f"pvc_name: {error}") from None
        size = None if wish.storage_size is None else _size("storage_size", wish.storage_size)
        storage = await self._storages.take(caller.name, name, size, service)
        return ServiceClaim(name=name, size=storage.size, mount_path=path)

    def _check_scale(self, record: ServiceRecord, replicas: int) -> None:
        if record.storage is not None and replicas > 1:
            raise InvalidArguments(
                f"replicas: a service with storage has 1 at the most, not {replicas}: a storage has one writer"
            )
        caller, more = record.caller, replicas - record.replicas
        most, used = caller.allowance.instances, self._instances.quota.used(caller.token_id).instances
        if more > 0 and most and used + more > most:
            raise QuotaExceeded(f"the service's token uses {used} of {most} instances, and this would be {more} more")
        if more > 0:
            self._instances.quota.admit(caller, more)

    async def _version(self, record: ServiceRecord, wish: EnvServiceUpdateRequest) -> str:
        """What it is to run."""
        name, _, version = record.target.env.partition("@")
        if wish.image is not None:
            found = _IMAGE.fullmatch(wish.image)
            if found is None or found["name"] != name:
                raise InvalidArguments(
                    f"image: this service runs {name}; name a version of it, like {name}:1.0.1, not '{wish.image}'"
                )
            version = found["version"]
        version = wish.version or version
        if f"{name}@{version}" == record.target.env:
            return record.target.env
        wanted = EnvInstanceCreateRequest(envName=f"{name}@{version}")
        project = await self._sources.find(wanted, record.caller)  # its replicas run what its account may read
        return _env_of(project, f"{name}@{version}")

    def _keep(self, record: ServiceRecord) -> ServiceReconciler:
        keeper = ServiceReconciler(record, self._instances, self._book, self._storages, self._grace)
        self._keepers[record.id] = keeper
        keeper.start()
        return keeper

    async def _end(self, record: ServiceRecord) -> None:
        keeper = self._keepers.pop(record.id, None)
        if keeper is not None:
            await keeper.stop(ended=True)
        if record.storage is not None:
            await self._storages.let_go(record.account, record.storage.name, record.id, delete=record.ending_storage)
        await self._book.remove(record.id)
        log.info("service %s is gone", record.id)

    def _may_take(self, record: ServiceRecord) -> bool:
        """Whether nobody runs it who could be reached, and this server can."""
        return record.server == "" and record.host in ("", self._host)

    def _left(self, record: ServiceRecord) -> ServiceRecord:
        mine = record.server == self._ledger.server.id
        return record.model_copy(update={"server": ""}) if mine else record

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                await self._take_over()
                await self._end_strays()
            except AEnvError as error:
                log.warning("services could not be looked at: %s", error.message)
            except Exception:
                log.exception("services could not be looked at")

    async def _take_over(self, *, first: bool = False) -> int:
        """Follow what others want of our services, and run those that nobody runs.

        ``first``: what is said to be run by this server was run by one before it that had the same name.
        """
        taken, mine = 0, self._ledger.server.id
        for record in await self._book.all():
            if record.server == mine and record.id in self._keepers:
                if record.ending:
                    await self._end(record)
                elif record != self._keepers[record.id].record and not self._lock(record.id).locked():
                    self._keepers[record.id].follow(record)
                continue
            free = first if record.server == mine else await self._ledger.is_server_gone(record.server)
            if record.host not in ("", self._host) or not free:
                continue
            before = record.server

            def take(record: ServiceRecord, before: str = before) -> ServiceRecord:
                return record.model_copy(update={"server": mine}) if record.server == before else record

            record = await self._book.change(record.id, take)
            if record.server != mine:
                continue
            if record.ending:
                await self._end(record)
                continue
            keeper = self._keep(record)
            keeper.state.restarts = (await self._book.state(record.id)).restarts
            keeper.note("taken-over", f"by server {mine}")
            taken += 1
        return taken

    async def _end_strays(self) -> None:
        """Replicas here of services that another server runs by now, or that are no more."""
        for record in self._instances.replicas():
            assert record.replica is not None
            service, asked = record.replica.service, record.request.request_id or ""
            keeper = self._keepers.get(service)
            if keeper is None or (keeper.looked and not keeper.has(record.id, asked)):
                with contextlib.suppress(NotFound, InstanceEnded):
                    await self._instances.delete(record.id, why=f"service {service} does not know it")

    def _lock(self, name: str) -> asyncio.Lock:
        if name not in self._changing and len(self._changing) > MOST:
            self._changing = {key: lock for key, lock in self._changing.items() if lock.locked()}
        return self._changing.setdefault(name, asyncio.Lock())

    def _count(self, operation: str, env: str) -> None:
        self._instances.metrics.count("service_operations_total", operation=operation, env_name=env.partition("@")[0])

    def _by_status(self) -> list[tuple[dict[str, str], float]]:
        tally = Tally((k.record.target.env.partition("@")[0], str(k.state.status)) for k in self._keepers.values())
        return [({"env_name": env, "status": status}, float(count)) for (env, status), count in tally.items()]

    def _replicas(self) -> list[tuple[dict[str, str], float]]:
        keepers = self._keepers.values()
        wanted = sum(keeper.record.replicas for keeper in keepers)
        return [
            ({"state": "wanted"}, float(wanted)),
            ({"state": "available"}, float(sum(keeper.state.available for keeper in keepers))),
        ]


def _shown(record: ServiceRecord, state: ServiceState) -> EnvService:
    name, _, version = record.target.env.partition("@")
    status, reason = state.status, state.reason
    if record.ending:
        status = ServiceStatus.TERMINATED
    elif record.previous is not None:
        status = ServiceStatus.UPDATING
    return EnvService(
        id=record.id,
        env=Env(id=record.target.env, name=name, version=version, created_at=record.created_at,
                updated_at=record.created_at),
        status=status, created_at=record.created_at, updated_at=record.updated_at, replicas=record.replicas,
        available_replicas=state.available, owner=record.owner, environment_variables=record.target.variables or None,
        pvc_name=record.storage.name if record.storage else None, reason=reason or record.failed,
        labels=record.labels, revision=record.target.revision, restarts=state.restarts, instances=state.instances,
        mount_path=record.storage.mount_path if record.storage else None,
        storage_size=record.storage.size if record.storage else None, storage_used=state.storage_used,
    )  # fmt: skip


def _env_of(project: Located, asked: str) -> str:
    if project.loaded is None:
        return asked
    own = project.loaded.manifest
    return f"{own.name}@{own.version}"


def _name(given: str | None, env: str, seed: str) -> str:
    if given is None:
        end = hashlib.sha256(seed.encode()).hexdigest()[:8] if seed else secrets.token_hex(4)
        return f"{env.partition('@')[0][: NAME_LENGTH - 13]}-svc-{end}"
    try:
        check_name(given)
    except ValueError as error:
        raise InvalidArguments(f"service_name: {error}") from None
    if len(given) > NAME_LENGTH:
        raise InvalidArguments(f"service_name: at most {NAME_LENGTH} characters")
    return given


def _replicas(count: int, least: int = 1) -> int:
    if not least <= count <= MOST:
        raise InvalidArguments(f"replicas: between {least} and {MOST}, not {count}")
    return count


def _own(wish: EnvServiceCreateRequest) -> Replica:
    """What the request says about resources; what it asks for is what it may use, unless it says both."""
    try:
        cpu = wish.cpu_limit or wish.cpu_request
        memory = wish.memory_limit or wish.memory_request
        disk = wish.ephemeral_storage_limit or wish.ephemeral_storage_request
        return Replica(
            cpus=quantities.millicores(cpu) / 1000 if cpu else None,
            memory=quantities.size(memory) if memory else None,
            disk=quantities.size(disk) if disk else None,
        )
    except ValueError as error:
        raise InvalidArguments(str(error)) from None


def _size(where: str, text: str) -> str:
    try:
        quantities.size(text)
    except ValueError as error:
        raise InvalidArguments(f"{where}: {error}") from None
    return text


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
