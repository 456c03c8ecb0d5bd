"""`InstanceSession`: the life of an instance as its caller sees it, and the requests to it.

It is the part of `Environment` that knows where the instance runs, creates and ends it, and turns a failed request into
the error that says why. What can be asked of an instance is up to the subclasses.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from aenv.client import local_lease, parent_platform
from aenv.client.instance_client import InstanceClient
from aenv.errors import (
    AEnvError,
    EnvironmentError,
    InstanceEnded,
    InstanceUnreachable,
    InvalidUse,
    UnrecoverableEnvironmentError,
)
from aenv.http.client import DeadlineExceeded
from aenv.http.url import Planes, ServerUrl
from aenv.schema import paths
from aenv.sdk import arguments as checks
from aenv.sdk import identity
from aenv.sdk.async_only import AsyncOnly
from aenv.sdk.circuit_breaker import CircuitBreaker
from aenv.sdk.health import probe, timed_out, wait_until_healthy
from aenv.sdk.placement import CreateRequest, Placement, PlatformPlacement, ServerPlacement
from aenv.sdk.qualified_names import split_env_name_version
from aenv.tracing.logging import getLogger
from aenv.tracing.rollout import RolloutTrace

if TYPE_CHECKING:
    from aenv.schema.instances import EnvInstance
    from aenv.sdk.inside.remote_process import Process
    from aenv.sdk.inside.transfer import Send

log = getLogger("environment")


class _Default(str):
    """A default value that can be told from an equal string given by the caller."""

    __slots__ = ()


DEFAULT_TTL = _Default("30m")


class InstanceSession(AsyncOnly):
    """An instance, created on first use and released at the end of ``async with``, and the requests to it.

    The subclass's constructor sets the settings and calls `_prepare`.
    """

    _twin = "SyncEnvironment(...)"

    env_name: str
    datasource: str
    ttl: str
    environment_variables: dict[str, str]
    arguments: list[str]
    timeout: float
    startup_timeout: float
    max_retries: int
    api_key: str | None
    skip_for_healthy: bool
    owner: str | None
    labels: dict[str, str]
    enable_data_plane: bool
    mount_points: list[dict[str, Any]] | None
    network: str | list[str] | None
    keep_alive: bool
    mcp: bool
    seed: int | None
    resources: dict[str, Any]
    forkable: bool
    _attach_to: str | None

    _instance: EnvInstance | None = None
    _last_instance: EnvInstance | None = None
    _client: InstanceClient | None = None
    _rollout: RolloutTrace | None = None
    _initializing: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
    _released = False
    _open_processes: set[Process] | None = None

    def _prepare(self, aenv_url: str | None) -> None:
        """Decide where the instance runs, set its URLs, and the state that requests share."""
        self.dummy_instance_ip = os.environ.get("AENV_INSTANCE_URL") or os.environ.get("DUMMY_INSTANCE_IP") or None
        self.proxy_headers: dict[str, str] = {}
        self._set_urls(self._place(aenv_url))
        self._breaker = CircuitBreaker()

    def _place(self, aenv_url: str | None) -> Planes:
        """Decide where the instance runs, and return the URLs of the control plane and the data plane."""
        platform_url = checks.optional_text("aenv_url", aenv_url or None) or os.environ.get("AENV_SYSTEM_URL") or None
        if self.dummy_instance_ip:
            data = ServerUrl.parse(aenv_url or self.dummy_instance_ip, default_port=paths.DATA_PORT)
            self._placement: Placement = ServerPlacement(data, self.api_key)
            return Planes(data, data)
        platform_url = platform_url or parent_platform.url()
        planes = Planes.parse(platform_url or "http://localhost")
        self._placement = PlatformPlacement(
            planes if platform_url else None,
            timeout=self.timeout,
            startup_timeout=self.startup_timeout,
            max_retries=self.max_retries,
            token=self.api_key,
            source=self._local_source() if platform_url is None else None,
        )
        return planes

    def _local_source(self) -> str | None:
        """Return the folder of the project on this machine that `env_name` refers to, and set its name; else None."""
        found = _find_project(self.env_name)
        if found is not None:
            self.env_name = found[0]
            return str(found[1])
        if self._attach_to is None:
            checks.reference(self.env_name)
        return None

    def _set_urls(self, planes: Planes) -> None:
        data_plane = str(planes.data)
        self.aenv_control_url = str(planes.control)
        self.aenv_data_url = f"{data_plane}{paths.MCP}"
        self.aenv_health_url = f"{data_plane}{paths.HEALTH}"
        self.aenv_reward_url = f"{data_plane}{paths.REWARD}"
        self.aenv_functions_base_url = f"{data_plane}{paths.FUNCTIONS}"

    # --- create and release

    async def initialize(self) -> bool:
        """Create the instance and wait until it is healthy. Does nothing if there is an instance already.

        After `release`, it creates a new instance.

        Raises:
            EnvironmentError: the instance could not be created or did not become healthy; nothing is left running.
            EnvironmentTimeoutError: it was not ready within ``startup_timeout``.
        """
        async with self._initialize_lock():
            if self._instance is None:
                self._released = False
                try:
                    await self._create()
                except BaseException:
                    await self._end_instance()
                    raise
        return True

    def _initialize_lock(self) -> asyncio.Lock:
        """Return the lock of the running event loop: a lock works in one loop only, and this object may outlive it."""
        loop = asyncio.get_running_loop()
        if self._initializing is None or self._initializing[0] is not loop:
            self._initializing = (loop, asyncio.Lock())
        return self._initializing[1]

    async def release(self) -> None:
        """End the instance. Releasing twice is harmless. A failure to end it is logged, not raised."""
        self._released = True
        if self._instance is not None or self._client is not None:
            log.info("%s Releasing environment", self._prefix)
            await self._end_instance()

    async def destroy(self) -> None:
        """Alias of `release`."""
        await self.release()

    async def __aenter__(self) -> Self:
        await self.initialize()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.release()

    async def wait_for_ready(self, timeout: float = 300.0) -> None:
        """Return when the instance is running and healthy; create it if there is none.

        Raises:
            EnvironmentTimeoutError: it was not ready within ``timeout`` seconds.
        """
        timeout = checks.seconds("timeout", timeout)
        try:
            async with asyncio.timeout(timeout):
                client = await self._ready_client()
                await wait_until_healthy(client, self.env_name, timeout, self._why_unreachable)
        except TimeoutError as error:
            if isinstance(error, AEnvError):
                raise
            raise timed_out(self.env_name, "startup", timeout, "the environment is not ready") from error

    async def _create(self) -> None:
        self._rollout = RolloutTrace.begin(self.env_name)
        try:
            with self._in_trace(self._rollout):
                if self._attach_to is not None:
                    self._instance = await self._attach(self._attach_to)
                else:  # from here on there is an instance to release
                    self._instance = await self._placement.create(self._create_request())
            await self._wait_until_ready()
        except EnvironmentError as error:
            error.env_name = self.env_name
            raise

    async def _attach(self, instance_id: str) -> EnvInstance:
        """Return an existing instance, which keeps running after release."""
        found = await self._placement.attach(instance_id)
        name = split_env_name_version(self.env_name)[0]
        if found.env is not None and found.env.name != name:
            raise InvalidUse(f"instance {instance_id} runs {found.env.name}, not {name}", self.env_name)
        return found

    async def _adopt(self, created: EnvInstance) -> None:
        """Take over an instance that a batch has requested."""
        async with self._initialize_lock():
            self._instance, self._rollout = created, RolloutTrace.begin(self.env_name)
            try:
                await self._wait_until_ready()
            except BaseException:
                await self._end_instance()
                raise

    async def _wait_until_ready(self) -> None:
        """Wait until the instance is running and healthy."""
        assert self._instance is not None
        instance = self._instance = await self._placement.wait(self._instance, self.startup_timeout)
        if isinstance(self._placement, PlatformPlacement):
            self.proxy_headers = PlatformPlacement.proxy_headers(instance)
        if self._rollout is not None:
            self._rollout.set_instance(instance.id)
        identity.warn(instance)
        log.info("%s Environment is running", self._prefix)
        if self.enable_data_plane:
            client = self._client = self._placement.client(instance)
            client.rollout = self._rollout
            if not (self.skip_for_healthy or instance.healthy):
                await wait_until_healthy(client, self.env_name, self.startup_timeout, self._why_unreachable)

    def _create_request(self) -> CreateRequest:
        """Return the fields of the request that creates the instance."""
        name, version = split_env_name_version(self.env_name)
        variables = self.environment_variables
        if self.seed is not None:
            variables = {"AENV_SEED": str(self.seed), **variables}
        return {
            "envName": self.env_name,
            "datasource": self.datasource,
            "ttl": "" if self.ttl is DEFAULT_TTL else self.ttl,
            "environment_variables": {**variables, "envNAME": name, "envversion": version},
            "arguments": self.arguments,
            "owner": self.owner,
            "labels": self.labels or None,
            "mount_points": self.mount_points,
            "network": self.network,
            "keep_alive": self.keep_alive or None,
            "mcp": self.mcp,
            **({"forkable": True} if self.forkable else {}),
            **{name: amount for name, amount in self.resources.items() if amount is not None},
        }

    async def _end_instance(self) -> None:
        """End the instance and close the connections to it."""
        instance, self._instance = self._instance, None
        self._last_instance = instance or self._last_instance
        client, self._client = self._client, None
        rollout, self._rollout = self._rollout, None
        for process in list(self._open_processes or ()):
            await process.close()
        if client is not None:
            client.close()
        try:
            with self._in_trace(rollout):
                if self._attach_to is not None or self.keep_alive:
                    await self._placement.disconnect()
                else:
                    await self._placement.delete(instance)
        finally:
            if rollout is not None:
                rollout.end()

    # --- requests to the instance

    async def _started(self) -> EnvInstance:
        """Return the instance, created on first use. After a release, only `initialize` creates another one."""
        if self._instance is None:
            if self._released:
                raise InvalidUse("this environment was released; call initialize() for a new instance", self.env_name)
            await self.initialize()
            assert self._instance is not None
        return self._instance

    def _existing(self) -> EnvInstance:
        if self._instance is None:
            raise InvalidUse("there is no instance yet; use 'async with', or call initialize()", self.env_name)
        return self._instance

    async def _ready_client(self) -> InstanceClient:
        """Return the client of the instance: created if there is none, probed if the circuit breaker is open."""
        if not self.enable_data_plane:
            raise InvalidUse("this environment was opened with enable_data_plane=False", self.env_name)
        if self._client is None:
            await self._started()
            assert self._client is not None
        client = self._client
        if self._breaker.is_open:
            await probe(client, self._breaker)
            if self._breaker.is_open:
                raise UnrecoverableEnvironmentError(
                    f"{client.url} was unreachable several times in a row; calls are refused until it answers again",
                    self.env_name,
                )
        return client

    async def _call(self, what: str, path: str, arguments: dict[str, Any] | None, timeout: float | None) -> Any:
        async def call(client: InstanceClient, seconds: float) -> Any:
            return await client.call(path, arguments or {}, timeout=seconds)

        return await self._exchange(what, call, timeout)

    async def _get(self, path: str, timeout: float | None = None) -> dict[str, Any]:
        async def get(client: InstanceClient, seconds: float) -> Any:
            return await client.exchange("GET", path, timeout=seconds)

        answer: dict[str, Any] = await self._exchange(f"GET {path}", get, timeout)
        return answer

    async def _exchange(self, what: str, send: Send, timeout: float | None) -> Any:
        seconds = self.timeout if timeout is None else checks.seconds("timeout", timeout)
        client = self._client
        if client is None or self._breaker.is_open:
            client = await self._ready_client()
        try:
            answer = await send(client, seconds)
        except DeadlineExceeded as error:
            raise timed_out(self.env_name, "call", seconds, f"{what} gave no answer") from error
        except InstanceUnreachable as error:
            ended = await self._why_ended(error)
            if ended is not None:
                raise ended from error
            self._breaker.failed()
            raise
        except EnvironmentError as error:
            error.env_name = self.env_name
            raise
        self._breaker.succeeded()
        return answer

    async def _why_unreachable(self, error: InstanceUnreachable) -> EnvironmentError | None:
        """Return why an instance that is starting will never answer; None if it may."""
        assert self._client is not None
        return self._placement.unreachable(self._client, error) or await self._why_ended(error)

    async def _why_ended(self, error: InstanceUnreachable) -> InstanceEnded | None:
        """Return the end of the instance as an error if that is why a call failed to connect or lost its connection."""
        instance = self._instance
        sent = bool(error.details.get("sent"))
        ended = await self._placement.why_ended(instance, sent=sent) if instance is not None else None
        if ended is not None:
            ended.env_name = self.env_name
        return ended

    def _keep_open(self, process: Process) -> None:
        """Remember an open connection, to be closed on release."""
        if self._open_processes is None:
            self._open_processes = set()
        self._open_processes.add(process)

    def _closed(self, process: Process) -> None:
        if self._open_processes is not None:
            self._open_processes.discard(process)

    @staticmethod
    def _in_trace(rollout: RolloutTrace | None) -> AbstractContextManager[None]:
        return rollout.as_parent() if rollout is not None else nullcontext()

    @property
    def _prefix(self) -> str:
        return f"[ENV:{self._instance.id if self._instance else '-'}]"

    # --- what it is

    @property
    def instance_id(self) -> str | None:
        """Id of the instance; before there is one, the id given to attach to, or None. Kept after the release."""
        known = self._instance or self._last_instance
        return known.id if known is not None else self._attach_to

    @property
    def version(self) -> str | None:
        """Version that runs, resolved from a range or a name; before there is an instance, an exact one asked for."""
        return identity.resolved_version(self.env_name, self._instance or self._last_instance)

    @property
    def trace_id(self) -> str | None:
        """Id of the OpenTelemetry trace of the calls; None where nothing is traced, and after the release."""
        return self._rollout.trace_id if self._rollout is not None else None

    @property
    def digest(self) -> str | None:
        """Digest of the version that runs; None for a project that does not come from a hub."""
        known = self._instance or self._last_instance
        return known.digest if known is not None else None

    @property
    def url(self) -> str | None:
        """URL that calls go to: of the instance itself, or of the platform's gateway. None without an instance."""
        return str(self._client.url) if self._client is not None else None


def _find_project(env_name: str) -> tuple[str, Path] | None:
    """Return name and folder of the project on this machine that ``env_name`` refers to, if any."""
    try:
        return local_lease.find_project(env_name)
    except (OSError, RuntimeError, ValueError) as error:  # no such home directory, or an invalid path
        raise InvalidUse(f"env_name: {error}", env_name) from None
