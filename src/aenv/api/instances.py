"""Instances and who they belong to.

An instance belongs to a lease, which is an open connection of the process that asked for it: when that process
ends, however it ends, the kernel closes the connection and the instance goes. Its time to live ends it as well.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any

from aenv.api.sources import Sources
from aenv.core.logging import getLogger
from aenv.engines.base import Engine, SandboxRef, SandboxSpec
from aenv.engines.imports import Neighbours
from aenv.errors import AEnvError, ConfigError, NotFound, UsageError
from aenv.isolation.limits import Limits
from aenv.isolation.network import Network
from aenv.project import quantities
from aenv.project.locate import Located
from aenv.schema import duration
from aenv.schema.instance import EnvInstance, EnvInstanceCreateRequest, EnvStatus

log = getLogger("instances")

DEFAULT_TTL = duration.parse("30m")
ABANDONED = 2.0
"""Seconds in which a create whose caller hung up may be asked for again."""


class Instances:
    """All instances of this platform."""

    def __init__(self, engine: Engine, sources: Sources | None = None) -> None:
        self._engine = engine
        self._sources = sources or Sources()
        self._records: dict[str, _Record] = {}
        self._by_request: dict[str, _Record] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._leases: set[str] = set()
        self._neighbours = Neighbours()
        self.changed = asyncio.Event()
        """Set whenever an instance came or went."""

    @property
    def in_use(self) -> bool:
        """Whether anybody holds a lease or an instance."""
        return bool(self._records or self._leases)

    async def create(self, wish: EnvInstanceCreateRequest) -> EnvInstance:
        """A running instance. The same ``request_id`` again gives the same one."""
        record = self._begin(wish, await self._sources.find(wish))
        record.waiting += 1
        try:
            await asyncio.shield(record.started)
        except asyncio.CancelledError:
            if record.started.cancelled():
                raise NotFound(f"instance {record.id} was deleted while it was being made") from None
            if record.waiting == 1:
                self._background(self._abandon(record))
            raise
        except AEnvError:
            self._records.pop(record.id, None)
            self._forget_request(record)
            raise
        finally:
            record.waiting -= 1
        return record.shown()

    async def create_many(self, wish: EnvInstanceCreateRequest, count: int) -> list[EnvInstance]:
        """``count`` instances that are being made; ask for each with `get` until it runs."""
        prefix = wish.request_id or secrets.token_hex(8)
        wishes = [wish.model_copy(update={"request_id": f"{prefix}/{number}"}) for number in range(count)]
        project = await self._sources.find(wish)
        return [self._begin(each, project).shown() for each in wishes]

    def _begin(self, wish: EnvInstanceCreateRequest, project: Located) -> _Record:
        known = self._by_request.get(wish.request_id) if wish.request_id else None
        if known is not None:
            return known
        record = _Record(wish, project, self._engine)
        record.started = self._background(self._start(record))
        record.started.add_done_callback(lambda task: task.cancelled() or task.exception())  # it is in the record
        self._records[record.id] = record
        if wish.request_id:
            self._by_request[wish.request_id] = record
        self.changed.set()
        return record

    async def _start(self, record: _Record) -> None:
        lease = record.wish.lease
        try:
            record.ref = await self._engine.start(record.spec(self._neighbours))
        except AEnvError as error:
            record.status, record.reason = EnvStatus.FAILED, error.message
            raise
        if record.id not in self._records or (lease is not None and lease not in self._leases):
            await self._engine.stop(record.ref)  # who asked for it went away meanwhile
            self._records.pop(record.id, None)
            raise NotFound("the lease of this instance has ended")
        record.status = EnvStatus.RUNNING
        loop = asyncio.get_running_loop()
        record.timer = loop.call_later(record.ttl.seconds, self._expire, record.id)

    async def _abandon(self, record: _Record) -> None:
        """Nobody waits for it: give who asked a moment to ask again, then end it."""
        await asyncio.sleep(ABANDONED)
        if record.waiting == 0 and not record.claimed:
            await self._delete_quietly(record.id)

    async def get(self, name: str, wait: float = 0.0) -> EnvInstance:
        """One instance, as it is now; one that is being made, when it is ready or ``wait`` seconds later."""
        record = self._find(name)
        record.claimed = True
        if record.status is EnvStatus.CREATING and wait > 0:
            await asyncio.wait({record.started}, timeout=wait)
        await self._refresh(record)
        return record.shown()

    async def list(self, env: str) -> list[EnvInstance]:
        """Those of one environment (``name`` or ``name@version``), or all (``*``)."""
        found = [r for r in self._records.values() if env == "*" or env in (r.env_name, r.env_name.partition("@")[0])]
        for record in found:
            await self._refresh(record)
        return [record.shown() for record in found]

    async def delete(self, name: str) -> None:
        """End one; return when it is gone."""
        record = self._find(name)
        del self._records[name]
        if record.timer is not None:
            record.timer.cancel()
        self._forget_request(record)
        if record.status is EnvStatus.CREATING:
            record.started.cancel()
            await asyncio.wait({record.started})
        elif record.ref is not None:
            await self._engine.stop(record.ref)
        self.changed.set()

    def _forget_request(self, record: _Record) -> None:
        if record.wish.request_id:
            self._by_request.pop(record.wish.request_id, None)

    def logs(self, name: str) -> str:
        """The last of what its tools wrote."""
        record = self._find(name)
        return self._engine.logs(record.ref) if record.ref else ""

    # --- leases

    def open_lease(self) -> str:
        """A new one; whoever holds it keeps its instances alive."""
        name = secrets.token_hex(8)
        self._leases.add(name)
        self.changed.set()
        return name

    async def end_lease(self, name: str) -> None:
        """Its holder is gone: so are its instances."""
        self._leases.discard(name)
        for record in [r for r in self._records.values() if r.wish.lease == name]:
            log.info("%s goes with its owner", record.id)
            try:
                await self.delete(record.id)
            except NotFound:
                continue
        self.changed.set()

    # --- inside

    def _find(self, name: str) -> _Record:
        record = self._records.get(name)
        if record is None:
            raise NotFound(f"no instance {name}")
        return record

    async def _refresh(self, record: _Record) -> None:
        if record.ref is None or record.status is not EnvStatus.RUNNING:
            return
        ended = await self._engine.poll(record.ref)
        if ended is not None:
            record.status, record.reason = EnvStatus.TERMINATED, ended.reason
        record.usage = self._engine.usage(record.ref)

    def _expire(self, name: str) -> None:
        log.info("%s has reached its time to live", name)
        self._background(self._delete_quietly(name))

    def _background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _delete_quietly(self, name: str) -> None:
        try:
            await self.delete(name)
        except NotFound:
            return


class _Record:
    """What is known of one instance."""

    def __init__(self, wish: EnvInstanceCreateRequest, project: Located, engine: Engine) -> None:
        own = project.loaded.manifest if project.loaded else None
        self.wish = wish
        self.project = project
        self.env_name = f"{own.name}@{own.version}" if own else wish.envName
        self.id = f"{self.env_name.partition('@')[0]}-{secrets.token_hex(4)}"
        self.created = datetime.now(UTC)
        self.status = EnvStatus.CREATING
        self.reason: str | None = None
        self.usage: dict[str, Any] = {}
        self.ref: SandboxRef | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.started: asyncio.Task[None]
        self.waiting = 0
        self.claimed = False
        """Somebody knows its id."""
        try:
            given = duration.parse(wish.ttl) if wish.ttl else None
        except ValueError as error:
            raise ConfigError(f"ttl: {error}") from None
        self.ttl = given or (own.ttl() if own else None) or DEFAULT_TTL
        if own and own.deploy_config.base and not engine.bases:
            raise UsageError(
                f"{self.env_name} runs on '{own.deploy_config.base}', which this platform's engine cannot do"
            )
        self.network = _network_of(self.env_name, wish, own.network() if own else Network(), engine)

    def spec(self, neighbours: Neighbours) -> SandboxSpec:
        own = self.project.loaded.manifest if self.project.loaded else None
        limits = Limits()
        if own is not None:
            resources = own.resources()
            limits = Limits(
                memory=quantities.size(resources.memory.limit),
                cpus=quantities.millicores(resources.cpu.limit) / 1000,
                disk=quantities.size(resources.ephemeral_storage.limit),
            )
        return SandboxSpec(
            self.env_name,
            self.project.root,
            self.project.code,
            {**self.project.variables, **(self.wish.environment_variables or {})},
            self.wish.arguments or [],
            limits,
            self.network,
            neighbours.needed_by(self.project.code) if own is None and self.project.code.is_file() else None,
            own.deploy_config.base if own else None,
        )

    def shown(self) -> EnvInstance:
        at = self.created.strftime("%Y-%m-%dT%H:%M:%SZ")
        return EnvInstance(
            id=self.id, status=self.status, created_at=at, updated_at=at, labels=self.wish.labels, ttl=str(self.ttl),
            owner=self.wish.owner, reason=self.reason, data_url=self.ref.data_url if self.ref else None,
            token=self.ref.token if self.ref else None, usage=self.usage or None,
            network=self.network.written,
            healthy=True if self.ref and self.ref.healthy else None,
        )  # fmt: skip


def _network_of(env_name: str, wish: EnvInstanceCreateRequest, own: Network, engine: Engine) -> Network:
    """What the caller asks for, else what the environment's config.json does.

    A config.json alone does not open the host's network: who wrote it need not be who runs it.
    """
    try:
        asked = Network.parse(wish.network) if wish.network is not None else None
    except ValueError as error:
        raise ConfigError(f"network: {error}") from None
    if asked is not None and asked.mode not in engine.networks:
        raise UsageError(
            f"network: this platform's engine cannot give an instance {asked.written}; "
            f"it can give {', '.join(sorted(engine.networks))}"
        )
    if asked is None and own.mode == "host" and "loopback" in engine.networks:
        raise UsageError(
            f"{env_name} asks for the host's whole network; if you want to give it that, say so: "
            f"Environment(..., network='host')"
        )
    if asked is None and own.mode not in engine.networks:
        asked = Network("host")  # of a plain process, which the engine has warned of
    chosen = asked or own
    if chosen.mode == "host":
        log.warning("an instance of %s is in the host's network, with every service that listens there", env_name)
    return chosen
