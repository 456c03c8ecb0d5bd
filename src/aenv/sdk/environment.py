"""``Environment``: create an instance of an environment and call its tools, functions and rewards."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from aenv import plugins
from aenv.authoring.failure_reward import failure_reward
from aenv.authoring.results import ExecResult, ToolResult
from aenv.client import local_lease
from aenv.client.instance_client import InstanceClient
from aenv.errors import (
    AEnvError,
    EnvironmentError,
    InstanceEnded,
    InstanceUnreachable,
    InvalidUse,
    StateDestroyed,
    ToolServerError,
    ToolTimeoutError,
    UnrecoverableEnvironmentError,
)
from aenv.http.client import DeadlineExceeded
from aenv.http.url import Planes, ServerUrl
from aenv.schema import paths
from aenv.sdk import arguments as checks
from aenv.sdk import transfer
from aenv.sdk.answer import Answer
from aenv.sdk.circuit_breaker import CircuitBreaker
from aenv.sdk.health import probe, timed_out, wait_until_healthy
from aenv.sdk.placement import CreateRequest, Placement, PlatformPlacement, ServerPlacement
from aenv.sdk.qualified_names import bare_name, make_mcp_url, split_env_name_version
from aenv.tracing.logging import getLogger
from aenv.tracing.rollout import Rollout

if TYPE_CHECKING:
    from aenv.schema.instances import EnvInstance
    from aenv.sdk.batch import Batch
    from aenv.sdk.blocking import SyncEnvironment

__all__ = ["Environment", "make_mcp_url", "split_env_name_version"]

log = getLogger("environment")

EXEC_MARGIN = 5.0
"""Seconds that the answer of `exec` may come after the command's own timeout."""


class _Default(str):
    """A default value that can be told from an equal string given by the caller."""

    __slots__ = ()


DEFAULT_TTL = _Default("30m")


class Environment:
    """An instance of an environment, created on first use and released at the end of ``async with``.

    The instance runs on one of these, in order of precedence:

    1. the server at ``AENV_INSTANCE_URL`` (older name: ``DUMMY_INSTANCE_IP``), which you started with ``aenv run``;
    2. the platform at ``aenv_url`` or ``AENV_SYSTEM_URL``;
    3. a sandbox on this machine, with no server started by hand.

    Args:
        env_name: ``name``, ``name@version``, or the path of a project on this machine.
        datasource: Data that the instance is for; its meaning is up to the environment.
        ttl: Time to live, such as ``"90s"`` or ``"2h"``: the platform ends an instance that was not released or
            renewed by then. Default: ``deployConfig.ttl`` of its config.json, else 30 minutes.
        environment_variables: Environment variables of the instance.
        arguments: Command line arguments of the instance.
        aenv_url: URL of the platform; default ``AENV_SYSTEM_URL``.
        timeout: Default time limit of a call, in seconds.
        startup_timeout: Time limit for creating the instance and for its first healthy answer, in seconds.
        max_retries: Retries of a failed request to the platform. Calls to the instance are never retried.
        api_key: Bearer token for the platform or the server; default ``AENV_API_KEY``.
        skip_for_healthy: Do not wait for the health check after creation.
        owner: Owner that the instance is listed under.
        labels: Labels of the instance, to find it by.
        enable_data_plane: False to only create and delete the instance, without a connection for calls.
        mount_points: Volumes to mount, in the platform's format.
        network: Network policy: ``"none"``, ``"loopback"``, ``"blackhole"``, ``"host"`` or a list of allowed hosts.
            Default: the policy in the environment's config.json.
        instance_id: Attach to this existing instance instead of creating one. It is not ended on release.
        keep_alive: Leave the instance running on release.
        mcp: Load the MCP server when the instance starts. Without it, creation is faster and the first MCP client
            waits about a second. ``keep_alive`` implies it.

    Raises:
        InvalidUse: an argument is invalid. Nothing has been started then.

    Example:
        ```python
        async with Environment("notes@1.0.0") as env:
            result = await env.call_tool("add_note", {"text": "buy milk"})
            reward = await env.call_reward({"words": ["milk"]})
        ```
    """

    _instance: EnvInstance | None = None
    _last_instance: EnvInstance | None = None
    _client: InstanceClient | None = None
    _rollout: Rollout | None = None
    _initializing: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
    _released = False

    def __init__(
        self,
        env_name: str,
        datasource: str = "",
        ttl: str = DEFAULT_TTL,
        environment_variables: Mapping[str, str] | None = None,
        arguments: list[str] | None = None,
        aenv_url: str | None = None,
        timeout: float = 60.0,
        startup_timeout: float = 500.0,
        max_retries: int = 10,
        api_key: str | None = None,
        skip_for_healthy: bool = False,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
        enable_data_plane: bool = True,
        mount_points: list[dict[str, Any]] | None = None,
        network: str | Sequence[str] | None = None,
        instance_id: str | None = None,
        keep_alive: bool = False,
        mcp: bool = False,
    ) -> None:
        self.env_name = checks.env_name(env_name)
        self.datasource = checks.text("datasource", "" if datasource is None else datasource, empty=True)
        self.ttl = ttl if ttl is DEFAULT_TTL else checks.duration("ttl", ttl)
        self.environment_variables = checks.variables("environment_variables", environment_variables)
        self.arguments = checks.texts("arguments", [] if arguments is None else arguments)
        self.timeout = checks.seconds("timeout", timeout)
        self.startup_timeout = checks.seconds("startup_timeout", startup_timeout)
        self.max_retries = checks.integer("max_retries", max_retries, 0)
        self.api_key = checks.secret("api_key", api_key) or os.environ.get("AENV_API_KEY") or None
        self.skip_for_healthy = checks.flag("skip_for_healthy", skip_for_healthy)
        self.owner = checks.one_line("owner", owner)
        self.labels = checks.labels("labels", labels)
        self.enable_data_plane = checks.flag("enable_data_plane", enable_data_plane)
        self.mount_points = checks.mounts("mount_points", mount_points)
        self.network = checks.network(network)
        self.instance_id = checks.optional_text("instance_id", instance_id)
        self.keep_alive = checks.flag("keep_alive", keep_alive)
        # An instance that outlives this object may get MCP clients.
        self.mcp = checks.flag("mcp", mcp) or self.keep_alive
        self.dummy_instance_ip = os.environ.get("AENV_INSTANCE_URL") or os.environ.get("DUMMY_INSTANCE_IP") or None
        self.proxy_headers: dict[str, str] = {}
        self._set_urls(self._place(aenv_url))
        self._breaker = CircuitBreaker()
        self._tool_paths: dict[str, str] = {}

    def _place(self, aenv_url: str | None) -> Planes:
        """Decide where the instance runs, and return the URLs of the control plane and the data plane."""
        platform_url = checks.optional_text("aenv_url", aenv_url or None) or os.environ.get("AENV_SYSTEM_URL") or None
        if self.dummy_instance_ip:
            data = ServerUrl.parse(aenv_url or self.dummy_instance_ip, default_port=paths.DATA_PORT)
            self._placement: Placement = ServerPlacement(data, self.api_key)
            return Planes(data, data)
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
        if self.instance_id is None:
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

    async def __aenter__(self) -> Environment:
        await self.initialize()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.release()

    @classmethod
    def batch(cls, env_name: str, n: int, **options: Any) -> Batch:
        """Return ``n`` environments whose instances are requested together and are used as they become ready.

        Args:
            env_name: As for `Environment`.
            n: Number of instances.
            **options: Other arguments of `Environment`.

        Example:
            ```python
            async with Environment.batch("notes@1.0.0", 8) as group:
                async for env in group:
                    await rollout(env)
            ```
        """
        from aenv.sdk.batch import Batch

        return Batch([cls(env_name, **options) for _ in range(checks.integer("n", n, 0))])

    def sync(self) -> SyncEnvironment:
        """Return a blocking view of this environment, for scripts and notebooks; both share the instance."""
        from aenv.sdk.blocking import SyncEnvironment

        return SyncEnvironment.of(self)

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
        self._rollout = Rollout.begin(self.env_name)
        try:
            with self._in_trace(self._rollout):
                if self.instance_id is not None:
                    self._instance = await self._attach(self.instance_id)
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
            self._instance, self._rollout = created, Rollout.begin(self.env_name)
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
        log.info("%s Environment is running", self._prefix)
        if self.enable_data_plane:
            client = self._client = self._placement.client(instance)
            client.rollout = self._rollout
            if not (self.skip_for_healthy or instance.healthy):
                await wait_until_healthy(client, self.env_name, self.startup_timeout, self._why_unreachable)

    @staticmethod
    def _in_trace(rollout: Rollout | None) -> AbstractContextManager[None]:
        return rollout.as_parent() if rollout is not None else nullcontext()

    def _create_request(self) -> CreateRequest:
        """Return the fields of the request that creates the instance."""
        name, version = split_env_name_version(self.env_name)
        return {
            "envName": self.env_name,
            "datasource": self.datasource,
            "ttl": "" if self.ttl is DEFAULT_TTL else self.ttl,
            "environment_variables": {**self.environment_variables, "envNAME": name, "envversion": version},
            "arguments": self.arguments,
            "owner": self.owner,
            "labels": self.labels or None,
            "mount_points": self.mount_points,
            "network": self.network,
            "keep_alive": self.keep_alive or None,
            "mcp": self.mcp,
        }

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

    async def _end_instance(self) -> None:
        """End the instance and close the connections to it."""
        instance, self._instance = self._instance, None
        self._last_instance = instance or self._last_instance
        client, self._client = self._client, None
        rollout, self._rollout = self._rollout, None
        if client is not None:
            client.close()
        try:
            with self._in_trace(rollout):
                if self.instance_id is not None or self.keep_alive:
                    await self._placement.disconnect()
                else:
                    await self._placement.delete(instance)
        finally:
            if rollout is not None:
                rollout.end()

    # --- describe

    async def list_tools(self) -> list[dict[str, Any]]:
        """Return the tools: qualified ``name`` (``env@version/tool``), ``description`` and ``inputSchema``."""
        data = (await self._get(paths.TOOLS))["data"]
        return [
            {
                "name": f"{self.env_name}/{tool['name']}",
                "description": tool.get("description"),
                "inputSchema": tool["inputSchema"],
            }
            for tool in data
        ]

    async def list_openai_tools(self) -> list[Any]:
        """Return the tools as FunctionTool objects of the OpenAI Agents SDK (extra ``agents``)."""
        tools: Callable[[Environment], Awaitable[list[Any]]] = plugins.load(plugins.ADAPTERS, "openai-agents")
        return await tools(self)

    async def list_functions(self) -> dict[str, Any]:
        """Return functions, rewards and health check, with their parameters."""
        data: dict[str, Any] = (await self._get(paths.FUNCTION_LIST))["data"]
        return data

    async def get_env_info(self) -> dict[str, Any]:
        """Return name, instance id, status, IP address and timestamps, and the resource usage where it is known."""
        current = await self._started()
        with self._in_trace(self._rollout):
            instance = self._instance = await self._placement.refresh(current)
        return {
            "name": self.env_name,
            "instance_id": instance.id,
            "status": str(instance.status),
            "ip": instance.ip,
            "created_at": instance.created_at,
            "updated_at": instance.updated_at,
            **({"usage": instance.usage} if instance.usage else {}),
        }

    async def renew(self, ttl: str = "") -> None:
        """Restart the time to live of the instance.

        Args:
            ttl: New time to live, such as ``"2h"``; default: as long as before.
        """
        ttl = checks.duration("ttl", ttl)
        current = await self._started()
        with self._in_trace(self._rollout):
            self._instance = await self._placement.renew(current, ttl)

    async def logs(self, tail: int | None = None) -> str:
        """Return the last output of the instance's tools, or its last ``tail`` lines.

        The log can be read for an hour after the instance has ended, also after `release`.
        """
        tail = None if tail is None else checks.integer("tail", tail, 0, 999_999_999)
        known = self._instance or self._last_instance or await self._started()
        try:
            return await self._placement.logs(known, tail)
        finally:
            if self._instance is None:
                await self._placement.disconnect()

    async def presign_url(self, port: int, expiration_time_in_minutes: int = 5) -> str:
        """Return a short-lived URL of a port inside the instance.

        Args:
            port: Port on which a program in the instance listens.
            expiration_time_in_minutes: Lifetime of the URL.
        """
        port = checks.integer("port", port, 1, 65535)
        minutes = checks.integer("expiration_time_in_minutes", expiration_time_in_minutes, 1)
        return await self._placement.presign_url(await self._started(), port, minutes)

    # --- call

    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None = None, timeout: float | None = None
    ) -> ToolResult:
        """Call a tool and return its result. The instance is created if there is none.

        An error of the tool or of its arguments is a result (``is_error``, ``fault``), for the agent to read. An
        exception means that there is no result.

        Args:
            tool_name: Bare name (``add``) or qualified name (``calc@1.0.0/add``).
            arguments: Arguments of the tool, serializable as JSON.
            timeout: Time limit in seconds; default: the constructor's ``timeout``.

        Raises:
            ToolTimeoutError: no answer within ``timeout`` seconds.
            ToolServerError: the connection broke, or the answer was invalid; the tool may have run.
            InstanceEnded: the instance has ended; the message says why, and ``details["sent"]`` whether the tool may
                have run.
            EnvironmentError: the instance could not be created or reached; the tool did not run.
        """
        if type(tool_name) is not str or (arguments is not None and type(arguments) is not dict):
            tool_name, arguments = checks.text("tool_name", tool_name), checks.call_arguments(arguments)
        path = self._tool_paths.get(tool_name) or self._tool_path(tool_name)
        client = self._client
        if client is None or self._breaker.is_open:
            client = await self._ready_client()
        seconds = self.timeout if timeout is None else checks.seconds("timeout", timeout)
        if log.isEnabledFor(20):
            log.info(
                "%s Executing tool: %s in environment %s",
                self._prefix,
                bare_name(self.env_name, tool_name),
                self.env_name,
            )
        try:
            data = await client.call(path, arguments or {}, timeout=seconds)
        except AEnvError as error:
            failure = await self._tool_failure(tool_name, seconds, error)
            if failure is None:
                raise
            raise failure from error
        self._breaker.succeeded()
        return ToolResult(
            data["content"],
            data["is_error"],
            fault=data.get("fault"),
            structured=data.get("structured"),
            is_json=data.get("is_json", False),
        )

    async def _tool_failure(self, tool_name: str, seconds: float, error: AEnvError) -> AEnvError | None:
        """Return the error that a failed tool call raises in place of ``error``; None to raise ``error`` itself."""
        if isinstance(error, DeadlineExceeded):
            return ToolTimeoutError(f"tool '{tool_name}' gave no answer within {seconds:g} s", tool_name, seconds)
        if isinstance(error, InstanceUnreachable):
            ended = await self._why_ended(error)
            if ended is not None:
                return ended
            self._breaker.failed()
            if not error.details.get("sent"):
                return None
            return ToolServerError(f"tool '{tool_name}' may have run, but gave no answer: {error.message}", tool_name)
        status = error.details.get("status")
        was_sent = isinstance(error, EnvironmentError) and status not in (401, 403, None)
        if not was_sent or isinstance(error, InstanceEnded):
            return None
        return ToolServerError(f"tool '{tool_name}': {error.message}", tool_name, status)

    def call_function(
        self, function_name: str, arguments: dict[str, Any] | None = None, timeout: float | None = None
    ) -> Answer:
        """Call a function; await the result to get its return value.

        The arguments are those of `call_tool`.

        Raises:
            FunctionFailed: the function raised.
            InvalidArguments: the arguments do not match its signature; it was not called.
            NotFound: no function has that name.
            EnvironmentTimeoutError: no answer within ``timeout`` seconds.
            EnvironmentError: any other failure, with its ``fault``. Base class of the errors above.
        """
        function_name, arguments = checks.text("function_name", function_name), checks.call_arguments(arguments)
        path = f"{paths.FUNCTIONS}/{quote(bare_name(self.env_name, function_name), safe='')}"
        timeout = None if timeout is None else checks.seconds("timeout", timeout)
        return Answer(self._call(f"function '{function_name}'", path, arguments, timeout))

    async def call_reward(
        self,
        arguments: dict[str, Any] | None = None,
        timeout: float | None = None,
        *,
        name: str | None = None,
    ) -> Any:
        """Return the reward.

        If the agent has ended the instance, destroyed what it would be graded on, or used up the time limit with code
        that the reward runs for it (`run_python`), this is the failure reward that the environment declares
        (``failureReward`` in config.json, default 0.0); `failure_reason` tells it from a computed reward. A reward that
        could not be computed for any other reason is an exception, never a number.

        Args:
            arguments: Arguments of the reward function.
            timeout: Time limit in seconds; default: the constructor's ``timeout``.
            name: Name of the reward, if the environment has several.

        Raises:
            EnvironmentError: there is no reward; see `call_function`.
        """
        name, arguments = checks.optional_text("name", name or None), checks.call_arguments(arguments)
        seconds = self.timeout if timeout is None else checks.seconds("timeout", timeout)
        chosen = {paths.REWARD_QUERY: name} if name else {}
        query = urlencode({**chosen, paths.TIMEOUT_QUERY: f"{seconds:g}"})  # agent code there must not use it up
        what = f"reward '{name}'" if name else "the reward"
        try:
            return await self._call(what, f"{paths.REWARD}?{query}", arguments, seconds)
        except (InstanceEnded, StateDestroyed) as error:
            if error.fault != "policy":
                raise
            return failure_reward(self._instance.failure_reward if self._instance else None, error.message)

    async def check_health(
        self, arguments: dict[str, Any] | None = None, timeout: float | None = None
    ) -> dict[str, Any]:
        """Return the answer of the health check: ``{"success": True, "data": {...}}``."""
        arguments = checks.call_arguments(arguments)
        query = f"?{urlencode(arguments, doseq=True)}" if arguments else ""
        return await self._get(paths.HEALTH + query, timeout)

    # --- commands and files in the instance

    async def exec(
        self,
        command: str | list[str],
        timeout: float | None = None,
        *,
        cwd: str | None = None,
        stdin: str = "",
    ) -> ExecResult:
        """Run a command in the instance.

        Args:
            command: A command line for its shell, or a list: a program and its arguments.
            timeout: Time limit in seconds; default: the constructor's ``timeout``. A command that exceeds it is
                killed, and the result has ``timed_out=True``.
            cwd: Working directory.
            stdin: Standard input.
        """
        seconds = self.timeout if timeout is None else checks.seconds("timeout", timeout)
        request = {
            "command": checks.command(command),
            "timeout": seconds,
            "cwd": checks.optional_text("cwd", cwd),
            "stdin": checks.standard_input(stdin),
        }
        return ExecResult(**await self._call("exec", paths.EXEC, request, seconds + EXEC_MARGIN))

    async def upload(self, data: bytes | str | Path, path: str, timeout: float | None = None) -> None:
        """Write bytes, text, or a file or folder of this machine to ``path`` in the instance.

        Folders and large files are streamed, so they may have any size; their default timeout is ten minutes.

        Args:
            data: Bytes or text to write, or a `Path` on this machine. The content of a folder is merged into ``path``.
            path: File or folder in the instance.
            timeout: Time limit in seconds.
        """
        path = checks.text("path", path)
        data = checks.content(data)
        if isinstance(data, Path) and transfer.is_streamed(data):
            send, timeout = transfer.put_stream(data, path), _stream_timeout(timeout)
        else:
            send = transfer.put_file(data, path)
        await self._exchange(f"upload to {path}", send, timeout)

    async def download(self, path: str, timeout: float | None = None) -> bytes:
        """Return the content of a file in the instance."""
        path = checks.text("path", path)
        data: bytes = await self._exchange(f"download of {path}", transfer.get_file(path), timeout)
        return data

    async def download_to(self, path: str, target: Path, timeout: float | None = None) -> None:
        """Copy a file or folder of any size from the instance to ``target`` on this machine.

        The content of a folder is merged into ``target``. Nothing is ever written outside of ``target``. The default
        timeout is ten minutes.
        """
        path, into = checks.text("path", path), Path(checks.text("target", target))
        await self._exchange(f"download of {path}", transfer.get_stream(path, into), _stream_timeout(timeout))

    # --- requests to the instance

    async def _started(self) -> EnvInstance:
        """Return the instance, created on first use. After a release, only `initialize` creates another one."""
        if self._instance is None:
            if self._released:
                raise InvalidUse("this environment was released; call initialize() for a new instance", self.env_name)
            await self.initialize()
            assert self._instance is not None
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

    async def _exchange(self, what: str, send: transfer.Send, timeout: float | None) -> Any:
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

    def _tool_path(self, tool_name: str) -> str:
        path = f"{paths.TOOLS}/{quote(bare_name(self.env_name, checks.text('tool_name', tool_name)), safe='')}"
        self._tool_paths[tool_name] = path
        return path

    @property
    def _prefix(self) -> str:
        return f"[ENV:{self._instance.id if self._instance else '-'}]"

    def __repr__(self) -> str:
        state = f"instance {self._instance.id}" if self._instance else "not started"
        return f"<Environment {self.env_name} ({state})>"


def _stream_timeout(timeout: float | None) -> float:
    return transfer.STREAM_SECONDS if timeout is None else timeout


def _find_project(env_name: str) -> tuple[str, Path] | None:
    """Return name and folder of the project on this machine that ``env_name`` refers to, if any."""
    try:
        return local_lease.find_project(env_name)
    except (OSError, RuntimeError, ValueError) as error:  # no such home directory, or an invalid path
        raise InvalidUse(f"env_name: {error}", env_name) from None
