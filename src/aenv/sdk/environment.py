"""``Environment``: create an instance of an environment and call its tools, functions and rewards."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from aenv import plugins
from aenv.authoring.failures.failure_reward import failure_reward
from aenv.authoring.results import ToolResult
from aenv.client.tool_progress import OnProgress
from aenv.errors import (
    AEnvError,
    EnvironmentError,
    InstanceEnded,
    InstanceUnreachable,
    StateDestroyed,
    ToolServerError,
    ToolTimeoutError,
)
from aenv.http.client import DeadlineExceeded
from aenv.schema import paths
from aenv.sdk import arguments as checks
from aenv.sdk import identity
from aenv.sdk.answer import Answer
from aenv.sdk.inside.sandbox_access import SandboxAccess
from aenv.sdk.instance_session import DEFAULT_TTL
from aenv.sdk.qualified_names import bare_name, make_mcp_url, split_env_name_version
from aenv.tracing.logging import getLogger, log_if_asked

if TYPE_CHECKING:
    from aenv.schema.instances import EnvInstance, EnvPool
    from aenv.schema.tasks import Task
    from aenv.sdk.batch import Batch
    from aenv.sdk.blocking import SyncEnvironment
    from aenv.sdk.branching import Checkpoint
    from aenv.sdk.model_tools import ModelTools

__all__ = ["Environment", "make_mcp_url", "split_env_name_version"]

log = getLogger("environment")

TASK_PAGE = 1000
"""Tasks in one answer of an instance."""


class Environment(SandboxAccess):
    """An instance of an environment, created on first use and released at the end of ``async with``.

    The instance runs on one of these, in order of precedence:

    1. the server at ``AENV_INSTANCE_URL`` (older name: ``DUMMY_INSTANCE_IP``), which you started with ``aenv run``;
    2. the platform at ``aenv_url`` or ``AENV_SYSTEM_URL``;
    3. a sandbox on this machine, with no server started by hand.

    Args:
        env_name: ``name``, ``name@version``, or the path of a project on this machine.
        datasource: Data that the instance is for; its meaning is up to the environment. A path like ``"/data/set"``
            is a folder of the platform's machine, shown read-only in the instance if the platform allows it.
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
        seed: Seed for the environment's random numbers, which finds it in the variable ``AENV_SEED``.
        cpu: Number of cores, such as ``2`` or ``"500m"``, in place of the one in config.json. The platform refuses it,
            as the following three, where its engine cannot set it for one instance.
        memory: Memory limit, such as ``"4Gi"``.
        storage: Limit of the instance's writable files, such as ``"10Gi"``.
        gpu: Number of GPUs.
        forkable: Make an instance that can be forked, checkpointed and rewound while it runs, see `fork`.

    Raises:
        InvalidUse: an argument is invalid. Nothing has been started then.

    Example:
        ```python
        async with Environment("notes@1.0.0") as env:
            result = await env.call_tool("add_note", {"text": "buy milk"})
            reward = await env.call_reward({"words": ["milk"]})
        ```
    """

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
        seed: int | None = None,
        cpu: str | float | None = None,
        memory: str | int | None = None,
        storage: str | int | None = None,
        gpu: int | None = None,
        forkable: bool = False,
    ) -> None:
        log_if_asked()
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
        self._attach_to = checks.optional_text("instance_id", instance_id)
        self.keep_alive = checks.flag("keep_alive", keep_alive)
        self.mcp = checks.flag("mcp", mcp) or self.keep_alive  # MCP clients may come after the release
        self.seed = None if seed is None else checks.integer("seed", seed, 0)
        self.resources = checks.resources(cpu, memory, storage, gpu)
        self.forkable = checks.flag("forkable", forkable)
        self._tool_paths: dict[str, str] = {}
        self._prepare(aenv_url)

    @classmethod
    def batch(
        cls, env_name: str, n: int | None = None, *, items: Sequence[Mapping[str, Any]] | None = None, **options: Any
    ) -> Batch:
        """Return environments whose instances are requested together and are used as they become ready.

        Args:
            env_name: As for `Environment`.
            n: Number of instances; default: one for each item.
            items: Arguments of `Environment` for each instance: ``datasource``, ``environment_variables``,
                ``arguments``, ``labels`` and ``seed``. Variables and labels are added to those of all instances, the
                others replace them.
            **options: Arguments of `Environment` for all instances.

        Example:
            ```python
            async with Environment.batch("notes@1.0.0", 8) as group:
                async for env in group:
                    await rollout(env)
            ```
        """
        from aenv.sdk.batch import Batch, options_of_items

        return Batch([cls(env_name, **each) for each in options_of_items(n, items, options)])

    # --- fork, checkpoint, rewind

    async def fork(
        self,
        n: int | None = None,
        *,
        items: Sequence[Mapping[str, Any]] | None = None,
        wait: float = 30.0,
        **options: Any,
    ) -> list[Environment | AEnvError]:
        """Continue ``n`` times from where the instance is: return environments with instances of their own.

        Each has a copy of the memory and files of this moment, its own id, token, time to live and random numbers. This
        environment goes on, with its connections. The instance must have been opened with ``forkable=True``.

        Args:
            n: Number of forks; default: one for each item, or 1.
            items: Arguments of each fork: ``environment_variables`` and ``labels``, which are added to those of the
                instance, ``ttl`` and ``seed``.
            wait: Seconds to wait for calls that run in the instance; 0 refuses to fork then.
            **options: The same arguments, for all forks.

        Returns:
            The environments in order, to be released like any other; in place of a fork that failed, its error.

        Raises:
            ForkRefused: something in the instance cannot be carried over. The message names it and the cure.
        """
        from aenv.sdk import branching

        count = 1 if n is None and items is None else n
        return await branching.fork(self, count, items=items, options=options, wait=wait)

    async def checkpoint(self, name: str | None = None, *, ttl: str = "", wait: float = 30.0) -> Checkpoint:
        """Keep a stopped copy of the instance as it is now, for `rewind` and `from_checkpoint`; the instance goes on.

        It uses memory but no CPU, counts as an instance of your quota, and ends with its time to live, with this
        process unless ``keep_alive`` is set, or by `delete_checkpoint`; not with the instance.

        Raises:
            ForkRefused: something in the instance cannot be carried over.
        """
        from aenv.sdk import branching

        return await branching.checkpoint(self, name, ttl, wait)

    async def rewind(self, checkpoint: Checkpoint | str) -> None:
        """Go back to a checkpoint. The instance keeps its id, address and token; a call that runs is ended.

        Raises:
            NotFound, InstanceEnded: there is no such checkpoint any more.
        """
        from aenv.sdk import branching

        await branching.rewind(self, checkpoint)

    @classmethod
    async def from_checkpoint(
        cls,
        checkpoint: Checkpoint | str,
        n: int | None = None,
        *,
        items: Sequence[Mapping[str, Any]] | None = None,
        aenv_url: str | None = None,
        api_key: str | None = None,
        timeout: float = 60.0,
        **options: Any,
    ) -> list[Environment | AEnvError]:
        """Do as `fork`, from a checkpoint, whose instance may have ended.

        ``aenv_url``, ``api_key`` and ``timeout`` are those of `Environment`, the other arguments those of `fork`.
        """
        from aenv.sdk import branching

        source = branching.checkpoint_id(checkpoint)
        env = cls("checkpoint", aenv_url=aenv_url, api_key=api_key, timeout=timeout, instance_id=source)
        count = 1 if n is None and items is None else n
        return await branching.fork_checkpoint(env, source, count, items, options)

    async def branches(self) -> list[EnvInstance]:
        """Return the records of the forks of this instance, and of theirs, oldest first; without checkpoints."""
        from aenv.sdk import branching

        return [record for record in await branching.branches(self) if record.checkpoint is None]

    async def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints of this instance and of its forks, oldest first."""
        from aenv.sdk import branching

        return [
            branching.Checkpoint.of(record)
            for record in await branching.branches(self)
            if record.checkpoint is not None
        ]

    async def delete_checkpoint(self, checkpoint: Checkpoint | str) -> None:
        """Delete a checkpoint. Forks of it stay. Deleting it twice is harmless."""
        from aenv.sdk import branching

        await branching.delete_checkpoint(self, checkpoint)

    async def create_pool(self, size: int) -> EnvPool:
        """Keep ``size`` instances ready that equal the one this would create; return once the first is ready.

        A pool serves later creates with the same arguments, and is filled again. It stays until `delete_pool`, or until
        its platform ends; another ``size`` changes it.
        """
        from aenv.sdk.pools import create_pool

        return await create_pool(self, checks.integer("size", size, 1))

    async def delete_pool(self) -> None:
        """End the pool of this environment. Instances in use stay. Raises NotFound if there is none."""
        from aenv.sdk.pools import delete_pool

        await delete_pool(self)

    def sync(self) -> SyncEnvironment:
        """Return a blocking view of this environment, for scripts and notebooks; both share the instance."""
        from aenv.sdk.blocking import SyncEnvironment

        return SyncEnvironment.of(self)

    def __repr__(self) -> str:
        state = f"instance {self._instance.id}" if self._instance else "not started"
        return f"<Environment {self.env_name} ({state})>"

    # --- describe

    @property
    def mcp_url(self) -> str:
        """URL of the instance's MCP server, for other MCP clients; they send `mcp_token` as a bearer token.

        An instance on this machine has one if it was opened with ``mcp=True``; it is reachable from this machine only.

        Raises:
            InvalidUse: there is no instance, or it was created without ``mcp=True``.
        """
        return self._placement.mcp_address(self._existing())[0]

    @property
    def mcp_token(self) -> str | None:
        """Bearer token for `mcp_url`; None if it needs none."""
        return self._placement.mcp_address(self._existing())[1]

    async def list_tools(self) -> list[dict[str, Any]]:
        """Return the tools: qualified ``name`` (``env@version/tool``), ``description`` and ``inputSchema``.

        ``outputSchema`` is there where the tool's return type says it.
        """
        data = (await self._get(paths.TOOLS))["data"]
        env = identity.qualified_name(self.env_name, self._instance)
        return [
            {
                "name": f"{env}/{tool['name']}",
                "description": tool.get("description"),
                "inputSchema": tool["inputSchema"],
                **({"outputSchema": tool["outputSchema"]} if tool.get("outputSchema") else {}),
            }
            for tool in data
        ]

    async def list_openai_tools(self) -> list[Any]:
        """Return the tools as FunctionTool objects of the OpenAI Agents SDK (extra ``agents``)."""
        return await self.agent_tools("openai-agents")

    async def agent_tools(self, framework: str) -> list[Any]:
        """Return the tools as tool objects of an agent framework, to give to one of its agents.

        Args:
            framework: ``"camel"``, ``"claude-agent-sdk"``, ``"google-adk"``, ``"langchain"`` (LangGraph too),
                ``"openai-agents"``, ``"pydantic-ai"``, ``"smolagents"``, or one that a plug-in adds.

        Raises:
            ConfigError: the framework is unknown or not installed.
        """
        tools: Callable[[Environment], Awaitable[list[Any]]] = plugins.load(plugins.ADAPTERS, framework)
        return await tools(self)

    async def tools_for(self, api: str) -> ModelTools:
        """Return the tools in the format of a model API, and a dispatcher for the calls that the model makes.

        Args:
            api: ``"openai-chat"``, ``"openai-responses"``, ``"anthropic"`` or ``"gemini"``.
        """
        from aenv.sdk.model_tools import ModelTools

        return await ModelTools.open(self, api)

    async def list_functions(self) -> dict[str, Any]:
        """Return functions, rewards and health check, with their parameters."""
        data: dict[str, Any] = (await self._get(paths.FUNCTION_LIST))["data"]
        return data

    async def list_tasks(self, arguments: dict[str, Any] | None = None) -> list[Task]:
        """Return the tasks of the environment, as its ``@register_tasks`` function lists them.

        Args:
            arguments: Arguments of that function, such as a split.

        Raises:
            NotFound: the environment declares no tasks.
            FunctionFailed: the function raised, or a row is not a task.
        """
        from aenv.schema.tasks import Task

        arguments = checks.call_arguments(arguments)
        rows: list[dict[str, Any]] = []
        while True:
            query = urlencode({paths.START_QUERY: len(rows), paths.LIMIT_QUERY: TASK_PAGE})
            page = await self._call("the list of tasks", f"{paths.TASK_LIST}?{query}", arguments, self.startup_timeout)
            rows += page["tasks"]
            if len(rows) >= page["total"] or not page["tasks"]:
                return [Task.model_validate(row) for row in rows]

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
        self,
        tool_name: str,
        arguments: dict[str, Any] | None = None,
        timeout: float | None = None,
        *,
        on_progress: OnProgress | None = None,
    ) -> ToolResult:
        """Call a tool and return its result. The instance is created if there is none.

        An error of the tool or of its arguments is a result (``is_error``, ``fault``), for the agent to read. An
        exception means that there is no result.

        Args:
            tool_name: Bare name (``add``) or qualified name (``calc@1.0.0/add``).
            arguments: Arguments of the tool, serializable as JSON.
            timeout: Time limit in seconds; default: the constructor's ``timeout``.
            on_progress: Called with amount done, total (or None) and message (or None) for each report of progress by
                the tool; a function or a coroutine function.

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
            name = bare_name(self.env_name, tool_name)
            env = identity.qualified_name(self.env_name, self._instance)
            log.info("%s Executing tool: %s in environment %s", self._prefix, name, env)
        try:
            if on_progress is None:
                data = await client.call(path, arguments or {}, timeout=seconds)
            else:
                data = await client.call_with_progress(path, arguments or {}, on_progress, timeout=seconds)
        except AEnvError as error:
            failure = await self._tool_failure(tool_name, seconds, error)
            if failure is None:
                raise
            raise failure from error
        self._breaker.succeeded()
        return _tool_result(data)

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

    def _tool_path(self, tool_name: str) -> str:
        path = f"{paths.TOOLS}/{quote(bare_name(self.env_name, checks.text('tool_name', tool_name)), safe='')}"
        self._tool_paths[tool_name] = path
        return path

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


def _tool_result(data: Mapping[str, Any]) -> ToolResult:
    """Return the result in the answer to a tool call."""
    return ToolResult(
        data["content"],
        data["is_error"],
        fault=data.get("fault"),
        structured=data.get("structured"),
        is_json=data.get("is_json", False),
    )
