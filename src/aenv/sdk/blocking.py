"""``SyncEnvironment``: a blocking version of ``Environment``, for scripts and notebooks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from aenv.authoring.results import ExecResult, ToolResult
from aenv.sdk.environment import Environment

T = TypeVar("T")


class _LoopThread:
    """An event loop in a thread, shared by all `SyncEnvironment` objects of the process."""

    _lock = threading.Lock()
    _loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def run(cls, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` on the loop and return its result. Ctrl-C cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, cls._running())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @classmethod
    def _running(cls) -> asyncio.AbstractEventLoop:
        with cls._lock:
            if cls._loop is None:
                cls._loop = asyncio.new_event_loop()
                threading.Thread(target=cls._loop.run_forever, name="aenv-sync", daemon=True).start()
            return cls._loop


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

    @property
    def env_name(self) -> str:
        """Name of the environment, ``name`` or ``name@version``."""
        return self._env.env_name

    def __enter__(self) -> SyncEnvironment:
        self.initialize()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def initialize(self) -> bool:
        """See `Environment.initialize`."""
        return _LoopThread.run(self._env.initialize())

    def release(self) -> None:
        """See `Environment.release`."""
        _LoopThread.run(self._env.release())

    destroy = release

    def wait_for_ready(self, timeout: float = 300.0) -> None:
        """See `Environment.wait_for_ready`."""
        _LoopThread.run(self._env.wait_for_ready(timeout))

    def list_tools(self) -> list[dict[str, Any]]:
        """See `Environment.list_tools`."""
        return _LoopThread.run(self._env.list_tools())

    def list_functions(self) -> dict[str, Any]:
        """See `Environment.list_functions`."""
        return _LoopThread.run(self._env.list_functions())

    def get_env_info(self) -> dict[str, Any]:
        """See `Environment.get_env_info`."""
        return _LoopThread.run(self._env.get_env_info())

    def renew(self, ttl: str = "") -> None:
        """See `Environment.renew`."""
        _LoopThread.run(self._env.renew(ttl))

    def logs(self, tail: int | None = None) -> str:
        """See `Environment.logs`."""
        return _LoopThread.run(self._env.logs(tail))

    def presign_url(self, port: int, expiration_time_in_minutes: int = 5) -> str:
        """See `Environment.presign_url`."""
        return _LoopThread.run(self._env.presign_url(port, expiration_time_in_minutes))

    def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None = None, timeout: float | None = None
    ) -> ToolResult:
        """See `Environment.call_tool`."""
        return _LoopThread.run(self._env.call_tool(tool_name, arguments, timeout))

    def call_function(
        self, function_name: str, arguments: dict[str, Any] | None = None, timeout: float | None = None
    ) -> Any:
        """See `Environment.call_function`."""
        return _LoopThread.run(self._env.call_function(function_name, arguments, timeout))

    def call_reward(
        self,
        arguments: dict[str, Any] | None = None,
        timeout: float | None = None,
        *,
        name: str | None = None,
    ) -> Any:
        """See `Environment.call_reward`."""
        return _LoopThread.run(self._env.call_reward(arguments, timeout, name=name))

    def check_health(self, arguments: dict[str, Any] | None = None, timeout: float | None = None) -> dict[str, Any]:
        """See `Environment.check_health`."""
        return _LoopThread.run(self._env.check_health(arguments, timeout))

    def exec(
        self,
        command: str | list[str],
        timeout: float | None = None,
        *,
        cwd: str | None = None,
        stdin: str = "",
    ) -> ExecResult:
        """See `Environment.exec`."""
        return _LoopThread.run(self._env.exec(command, timeout, cwd=cwd, stdin=stdin))

    def upload(self, data: bytes | str | Path, path: str, timeout: float | None = None) -> None:
        """See `Environment.upload`."""
        _LoopThread.run(self._env.upload(data, path, timeout))

    def download(self, path: str, timeout: float | None = None) -> bytes:
        """See `Environment.download`."""
        return _LoopThread.run(self._env.download(path, timeout))

    def download_to(self, path: str, target: Path, timeout: float | None = None) -> None:
        """See `Environment.download_to`."""
        _LoopThread.run(self._env.download_to(path, target, timeout))

    def __repr__(self) -> str:
        return repr(self._env).replace("<Environment", "<SyncEnvironment", 1)
