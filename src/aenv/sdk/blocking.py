"""``SyncEnvironment``: a blocking version of ``Environment``, for scripts and notebooks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from aenv.authoring.results import ExecResult, ToolResult
from aenv.client.tool_progress import OnProgress
from aenv.errors import AEnvError
from aenv.sdk.batch import Batch
from aenv.sdk.environment import Environment
from aenv.sdk.model_tools import ModelTools

if TYPE_CHECKING:
    from aenv.schema.instances import EnvInstance, EnvPool
    from aenv.schema.tasks import Task
    from aenv.sdk.branching import Checkpoint
    from aenv.sdk.inside.blocking_handles import SyncFiles, SyncPortForward, SyncProcess

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread, shared by all `SyncEnvironment` objects of the process."""

    _lock = threading.Lock()
    _loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def run(cls, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` on the loop and return its result. Ctrl-C cancels it, also before this thread waits for it."""
        loop = cls._running()
        started: list[asyncio.Task[Any]] = []

        async def cancellable() -> T:
            if task := asyncio.current_task():
                started.append(task)
            return await work

        def cancel() -> None:
            for task in started:
                task.cancel()

        try:
            return asyncio.run_coroutine_threadsafe(cancellable(), loop).result()
        except BaseException:
            loop.call_soon_threadsafe(loop.call_soon, cancel)  # twice: the task that it made has then taken a step
            raise

    @classmethod
    def _running(cls) -> asyncio.AbstractEventLoop:
        with cls._lock:
            if cls._loop is None:
                cls._loop = asyncio.new_event_loop()
                threading.Thread(target=cls._loop.run_forever, name="aenv-sync", daemon=True).start()
            return cls._loop


class SyncModelTools:
    """A blocking `ModelTools`."""

    def __init__(self, tools: ModelTools) -> None:
        self._tools = tools
        self.definitions = tools.definitions
        """See `ModelTools.definitions`."""

    def answer(self, response: Any, timeout: float | None = None) -> list[dict[str, Any]]:
        """See `ModelTools.answer`."""
        return LoopThread.run(self._tools.answer(response, timeout))


class SyncBatch:
    """A blocking `Batch`: ``with`` creates and releases, ``for`` yields each environment when it is ready."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.environments = [SyncEnvironment.of(env) for env in batch.environments]

    def __len__(self) -> int:
        return len(self.environments)

    def __enter__(self) -> SyncBatch:
        LoopThread.run(self._batch.__aenter__())
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def __iter__(self) -> Iterator[SyncEnvironment]:
        ready = aiter(self._batch)

        async def next_ready() -> Environment | None:
            return await anext(ready, None)

        while (env := LoopThread.run(next_ready())) is not None:
            yield SyncEnvironment.of(env)

    def all(self) -> list[SyncEnvironment]:
        """See `Batch.all`."""
        return [SyncEnvironment.of(env) for env in LoopThread.run(self._batch.all())]

    def release(self) -> None:
        """See `Batch.release`."""
        LoopThread.run(self._batch.release())


class SyncEnvironment:
    """A blocking `Environment`, for scripts and notebooks.

    It takes the arguments of `Environment` and has the same methods; each one blocks until it is done and raises the
    same errors. It also works in a notebook, whose event loop is running: calls run on a loop in another thread.

    Example:
        ```python
        with SyncEnvironment("notes@1.0.0") as env:
            print(env.call_tool("add_note", {"text": "buy milk"}).data)
            print(env.call_reward({"words": ["milk"]}))
        ```
    """

    def __init__(self, env_name: str, *args: Any, **options: Any) -> None:
        self._env = Environment(env_name, *args, **options)

    @classmethod
    def of(cls, env: Environment) -> SyncEnvironment:
        """Return a blocking view of an existing `Environment`; both share its instance."""
        twin = cls.__new__(cls)
        twin._env = env
        return twin

    @classmethod
    def batch(
        cls, env_name: str, n: int | None = None, *, items: Sequence[Mapping[str, Any]] | None = None, **options: Any
    ) -> SyncBatch:
        """See `Environment.batch`."""
        return SyncBatch(Environment.batch(env_name, n, items=items, **options))

    @property
    def env_name(self) -> str:
        """Name of the environment, ``name`` or ``name@version``."""
        return self._env.env_name

    @property
    def mcp_url(self) -> str:
        """See `Environment.mcp_url`."""
        return self._env.mcp_url

    @property
    def mcp_token(self) -> str | None:
        """See `Environment.mcp_token`."""
        return self._env.mcp_token

    @property
    def instance_id(self) -> str | None:
        """See `Environment.instance_id`."""
        return self._env.instance_id

    @property
    def version(self) -> str | None:
        """See `Environment.version`."""
        return self._env.version

    @property
    def digest(self) -> str | None:
        """See `Environment.digest`."""
        return self._env.digest

    @property
    def url(self) -> str | None:
        """See `Environment.url`."""
        return self._env.url

    def __enter__(self) -> SyncEnvironment:
        self.initialize()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def initialize(self) -> bool:
        """See `Environment.initialize`."""
        return LoopThread.run(self._env.initialize())

    def release(self) -> None:
        """See `Environment.release`."""
        LoopThread.run(self._env.release())

    destroy = release

    def create_pool(self, size: int) -> EnvPool:
        """See `Environment.create_pool`."""
        return LoopThread.run(self._env.create_pool(size))

    def delete_pool(self) -> None:
        """See `Environment.delete_pool`."""
        LoopThread.run(self._env.delete_pool())

    def wait_for_ready(self, timeout: float = 300.0) -> None:
        """See `Environment.wait_for_ready`."""
        LoopThread.run(self._env.wait_for_ready(timeout))

    def list_tools(self) -> list[dict[str, Any]]:
        """See `Environment.list_tools`."""
        return LoopThread.run(self._env.list_tools())

    def agent_tools(self, framework: str) -> list[Any]:
        """See `Environment.agent_tools`."""
        return LoopThread.run(self._env.agent_tools(framework))

    def tools_for(self, api: str) -> SyncModelTools:
        """See `Environment.tools_for`."""
        return SyncModelTools(LoopThread.run(self._env.tools_for(api)))

    def list_functions(self) -> dict[str, Any]:
        """See `Environment.list_functions`."""
        return LoopThread.run(self._env.list_functions())

    def list_tasks(self, arguments: dict[str, Any] | None = None) -> list[Task]:
        """See `Environment.list_tasks`."""
        return LoopThread.run(self._env.list_tasks(arguments))

    def get_env_info(self) -> dict[str, Any]:
        """See `Environment.get_env_info`."""
        return LoopThread.run(self._env.get_env_info())

    def fork(
        self,
        n: int | None = None,
        *,
        items: Sequence[Mapping[str, Any]] | None = None,
        wait: float = 30.0,
        **options: Any,
    ) -> list[SyncEnvironment | AEnvError]:
        """See `Environment.fork`."""
        return _blocking(LoopThread.run(self._env.fork(n, items=items, wait=wait, **options)))

    def checkpoint(self, name: str | None = None, *, ttl: str = "", wait: float = 30.0) -> Checkpoint:
        """See `Environment.checkpoint`."""
        return LoopThread.run(self._env.checkpoint(name, ttl=ttl, wait=wait))

    def rewind(self, checkpoint: Checkpoint | str) -> None:
        """See `Environment.rewind`."""
        LoopThread.run(self._env.rewind(checkpoint))

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint | str,
        n: int | None = None,
        *,
        items: Sequence[Mapping[str, Any]] | None = None,
        aenv_url: str | None = None,
        api_key: str | None = None,
        timeout: float = 60.0,
        **options: Any,
    ) -> list[SyncEnvironment | AEnvError]:
        """See `Environment.from_checkpoint`."""
        platform: dict[str, Any] = {"aenv_url": aenv_url, "api_key": api_key, "timeout": timeout}
        made = Environment.from_checkpoint(checkpoint, n, items=items, **platform, **options)
        return _blocking(LoopThread.run(made))

    def branches(self) -> list[EnvInstance]:
        """See `Environment.branches`."""
        return LoopThread.run(self._env.branches())

    def checkpoints(self) -> list[Checkpoint]:
        """See `Environment.checkpoints`."""
        return LoopThread.run(self._env.checkpoints())

    def delete_checkpoint(self, checkpoint: Checkpoint | str) -> None:
        """See `Environment.delete_checkpoint`."""
        LoopThread.run(self._env.delete_checkpoint(checkpoint))

    def renew(self, ttl: str = "") -> None:
        """See `Environment.renew`."""
        LoopThread.run(self._env.renew(ttl))

    def logs(self, tail: int | None = None) -> str:
        """See `Environment.logs`."""
        return LoopThread.run(self._env.logs(tail))

    def presign_url(self, port: int, expiration_time_in_minutes: int = 5) -> str:
        """See `Environment.presign_url`."""
        return LoopThread.run(self._env.presign_url(port, expiration_time_in_minutes))

    def call_tool(
        self,
        tool_name: str,
        arguments: dict[str, Any] | None = None,
        timeout: float | None = None,
        *,
        on_progress: OnProgress | None = None,
    ) -> ToolResult:
        """See `Environment.call_tool`. ``on_progress`` is called in another thread."""
        return LoopThread.run(self._env.call_tool(tool_name, arguments, timeout, on_progress=on_progress))

    def call_function(
        self, function_name: str, arguments: dict[str, Any] | None = None, timeout: float | None = None
    ) -> Any:
        """See `Environment.call_function`."""
        return LoopThread.run(self._env.call_function(function_name, arguments, timeout))

    def call_reward(
        self,
        arguments: dict[str, Any] | None = None,
        timeout: float | None = None,
        *,
        name: str | None = None,
    ) -> Any:
        """See `Environment.call_reward`."""
        return LoopThread.run(self._env.call_reward(arguments, timeout, name=name))

    def check_health(self, arguments: dict[str, Any] | None = None, timeout: float | None = None) -> dict[str, Any]:
        """See `Environment.check_health`."""
        return LoopThread.run(self._env.check_health(arguments, timeout))

    @overload
    def exec(
        self,
        command: str | list[str],
        timeout: float | None = None,
        *,
        cwd: str | None = None,
        stdin: str | bytes = "",
        env: Mapping[str, str] | None = None,
    ) -> ExecResult: ...

    @overload
    def exec(
        self,
        command: str | list[str],
        timeout: float | None = None,
        *,
        cwd: str | None = None,
        stdin: str | bytes = "",
        env: Mapping[str, str] | None = None,
        stream: Literal[True],
        interactive: bool = False,
        tty: bool = False,
    ) -> SyncProcess: ...

    @overload
    def exec(
        self,
        command: str | list[str],
        timeout: float | None = None,
        *,
        cwd: str | None = None,
        stdin: str | bytes = "",
        env: Mapping[str, str] | None = None,
        background: Literal[True],
        interactive: bool = False,
    ) -> SyncProcess: ...

    def exec(
        self,
        command: str | list[str],
        timeout: float | None = None,
        *,
        cwd: str | None = None,
        stdin: str | bytes = "",
        env: Mapping[str, str] | None = None,
        stream: bool = False,
        background: bool = False,
        interactive: bool = False,
        tty: bool = False,
    ) -> ExecResult | SyncProcess:
        """See `Environment.exec`. With ``stream`` or ``background`` the result is a `SyncProcess`."""
        flags: dict[str, Any] = {"stream": stream, "background": background, "interactive": interactive, "tty": tty}

        async def run() -> Any:
            started: Any = self._env.exec(command, timeout, cwd=cwd, stdin=stdin, env=env, **flags)
            return await started

        done = LoopThread.run(run())
        if isinstance(done, ExecResult):
            return done
        from aenv.sdk.inside.blocking_handles import SyncProcess

        return SyncProcess(done)

    def processes(self) -> list[dict[str, Any]]:
        """See `Environment.processes`."""
        return LoopThread.run(self._env.processes())

    def process(self, process_id: int) -> SyncProcess:
        """See `Environment.process`."""
        from aenv.sdk.inside.blocking_handles import SyncProcess

        return SyncProcess(self._env.process(process_id))

    @property
    def files(self) -> SyncFiles:
        """See `Environment.files`."""
        from aenv.sdk.inside.blocking_handles import SyncFiles

        return SyncFiles(self._env.files)

    def forward(self, port: int, local_port: int = 0, host: str = "127.0.0.1") -> SyncPortForward:
        """See `Environment.forward`."""
        from aenv.sdk.inside.blocking_handles import SyncPortForward

        return SyncPortForward(self._env.forward(port, local_port, host))

    def upload(self, data: bytes | str | Path, path: str, timeout: float | None = None) -> None:
        """See `Environment.upload`."""
        LoopThread.run(self._env.upload(data, path, timeout))

    def download(self, path: str, timeout: float | None = None) -> bytes:
        """See `Environment.download`."""
        return LoopThread.run(self._env.download(path, timeout))

    def download_to(self, path: str, target: Path, timeout: float | None = None) -> None:
        """See `Environment.download_to`."""
        LoopThread.run(self._env.download_to(path, target, timeout))

    def __repr__(self) -> str:
        return repr(self._env).replace("<Environment", "<SyncEnvironment", 1)


def _blocking(made: list[Environment | AEnvError]) -> list[SyncEnvironment | AEnvError]:
    return [each if isinstance(each, AEnvError) else SyncEnvironment.of(each) for each in made]
