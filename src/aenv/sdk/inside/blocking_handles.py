"""Blocking versions of what `Environment` returns for processes, files and ports; see `SyncEnvironment`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from aenv.authoring.results import ExecResult
from aenv.sdk.blocking import LoopThread
from aenv.sdk.inside.instance_files import Files, Watch
from aenv.sdk.inside.port_forward import PortForward
from aenv.sdk.inside.remote_process import Process, ProcessOutput

if TYPE_CHECKING:
    from aenv.schema.inside import FileEvent, FileInfo


class SyncProcess:
    """A blocking `Process`. ``for`` yields its output, ``with`` closes it."""

    def __init__(self, process: Process) -> None:
        """Start it."""
        self._process = process
        LoopThread.run(process._start())

    @property
    def id(self) -> int | None:
        """See `Process.id`."""
        return self._process.id

    @property
    def exit_code(self) -> int | None:
        """See `Process.exit_code`."""
        return self._process.exit_code

    @property
    def timed_out(self) -> bool:
        """See `Process.timed_out`."""
        return self._process.timed_out

    def __enter__(self) -> SyncProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[ProcessOutput]:
        while (chunk := self.read()) is not None:
            yield chunk
        self.close()

    def read(self) -> ProcessOutput | None:
        """See `Process.read`."""
        return LoopThread.run(self._process.read())

    def wait(self, timeout: float | None = None) -> ExecResult:
        """See `Process.wait`."""
        return LoopThread.run(self._process.wait(timeout))

    def write(self, data: str | bytes) -> None:
        """See `Process.write`."""
        LoopThread.run(self._process.write(data))

    def close_stdin(self) -> None:
        """See `Process.close_stdin`."""
        LoopThread.run(self._process.close_stdin())

    def kill(self, signal: str | int = "KILL") -> None:
        """See `Process.kill`."""
        LoopThread.run(self._process.kill(signal))

    def resize(self, rows: int, columns: int) -> None:
        """See `Process.resize`."""
        LoopThread.run(self._process.resize(rows, columns))

    def close(self) -> None:
        """See `Process.close`."""
        LoopThread.run(self._process.close())

    def __repr__(self) -> str:
        return repr(self._process).replace("<Process", "<SyncProcess", 1)


class SyncFiles:
    """A blocking `Files`."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def list(self, path: str = ".", *, depth: int = 1, limit: int = 10_000) -> list[FileInfo]:
        """See `Files.list`."""
        return LoopThread.run(self._files.list(path, depth=depth, limit=limit))

    def stat(self, path: str) -> FileInfo:
        """See `Files.stat`."""
        return LoopThread.run(self._files.stat(path))

    def exists(self, path: str) -> bool:
        """See `Files.exists`."""
        return LoopThread.run(self._files.exists(path))

    def read(self, path: str) -> bytes:
        """See `Files.read`."""
        return LoopThread.run(self._files.read(path))

    def read_text(self, path: str) -> str:
        """See `Files.read_text`."""
        return LoopThread.run(self._files.read_text(path))

    def write(self, path: str, data: bytes | str | Path) -> None:
        """See `Files.write`."""
        LoopThread.run(self._files.write(path, data))

    def make_folder(self, path: str) -> None:
        """See `Files.make_folder`."""
        LoopThread.run(self._files.make_folder(path))

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """See `Files.remove`."""
        LoopThread.run(self._files.remove(path, recursive=recursive))

    def watch(self, path: str = ".", *, recursive: bool = False) -> SyncWatch:
        """See `Files.watch`."""
        return SyncWatch(self._files.watch(path, recursive=recursive))


class SyncWatch:
    """A blocking `Watch`: ``with`` begins to watch, ``for`` yields changes."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __enter__(self) -> SyncWatch:
        LoopThread.run(self._watch.__aenter__())
        return self

    def __exit__(self, *exc: object) -> None:
        LoopThread.run(self._watch.__aexit__(None, None, None))

    def __iter__(self) -> Iterator[FileEvent]:
        changes = self._watch.__aiter__()

        async def following() -> FileEvent | None:
            return await anext(changes, None)

        while (change := LoopThread.run(following())) is not None:
            yield change


class SyncPortForward:
    """A blocking `PortForward`, within ``with``."""

    def __init__(self, forward: PortForward) -> None:
        self._forward = forward

    @property
    def port(self) -> int:
        """See `PortForward.port`."""
        return self._forward.port

    @property
    def url(self) -> str:
        """See `PortForward.url`."""
        return self._forward.url

    def __enter__(self) -> SyncPortForward:
        LoopThread.run(self._forward.__aenter__())
        return self

    def __exit__(self, *exc: object) -> None:
        LoopThread.run(self._forward.__aexit__(None, None, None))
