"""`SandboxAccess`: commands, files and ports in the sandbox of an instance."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from aenv.authoring.results import ExecResult
from aenv.errors import InvalidUse
from aenv.schema import paths
from aenv.sdk import arguments as checks
from aenv.sdk.inside import transfer
from aenv.sdk.instance_session import InstanceSession

if TYPE_CHECKING:
    from aenv.sdk.inside.instance_files import Files
    from aenv.sdk.inside.port_forward import PortForward
    from aenv.sdk.inside.remote_process import Process

EXEC_MARGIN = 5.0
"""Seconds that the answer of `exec` may come after the command's own timeout."""


class SandboxAccess(InstanceSession):
    """A session that runs commands, moves files and forwards ports."""

    @overload
    def exec(
        self,
        command: str | list[str],
        timeout: float | None = None,
        *,
        cwd: str | None = None,
        stdin: str | bytes = "",
        env: Mapping[str, str] | None = None,
    ) -> Coroutine[Any, Any, ExecResult]: ...

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
    ) -> Process: ...

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
    ) -> Process: ...

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
    ) -> Coroutine[Any, Any, ExecResult] | Process:
        """Run a command in the instance's sandbox, with the rights of the programs that its tools start.

        Await the result. With ``stream`` or ``background`` the result is a `Process`: iterate over it with ``async
        for`` to get the output while it runs, or ``await`` it to have it started. A streamed process ends when it is
        closed or the connection is lost; a background process runs until it ends or the instance does.

        Args:
            command: A line for the shell, or a program and its arguments.
            timeout: Time limit in seconds after which the command is killed, and the result has ``timed_out=True``.
                Default: the constructor's ``timeout``; none with ``stream`` or ``background``.
            cwd: Working directory.
            stdin: Standard input.
            env: Variables to set, in addition to those of the instance.
            stream: Return a `Process` whose output is read while it runs.
            background: Return a `Process` that runs on without this connection; the last 256 KiB of its output are
                kept.
            interactive: Keep standard input open, for `Process.write`.
            tty: Run it on a terminal; needs ``stream``.
        """
        command, details = checks.command(command), checks.command_details(cwd, env, stdin)
        if not (stream or background):
            if interactive or tty:
                raise InvalidUse("interactive and tty need stream=True or background=True", self.env_name)
            seconds = self.timeout if timeout is None else checks.seconds("timeout", timeout)
            return self._exec(command, seconds, details)
        if background and (stream or tty):
            raise InvalidUse("background excludes stream and tty", self.env_name)
        if stdin and interactive:
            raise InvalidUse("pass either stdin or interactive=True, and write input with Process.write()")
        limit = None if timeout is None else checks.seconds("timeout", timeout)
        return self._process(command, limit, details, background=background, interactive=interactive, tty=tty)

    def _process(
        self,
        command: str | list[str],
        limit: float | None,
        details: dict[str, Any],
        *,
        background: bool,
        interactive: bool,
        tty: bool,
    ) -> Process:
        from aenv.sdk.inside.remote_process import Process, start_request

        given = b"" if background else details.pop("stdin")
        flags: dict[str, Any] = {"detach": bool(background), "tty": bool(tty)}
        flags["interactive"] = bool(interactive or tty or given)
        return Process(self, start_request(command, timeout=limit, **details, **flags), stdin=given)

    async def _exec(self, command: str | list[str], seconds: float, details: dict[str, Any]) -> ExecResult:
        from aenv.sdk.inside.remote_process import start_request

        request = start_request(command, timeout=seconds, **details)
        return ExecResult(**await self._call("exec", paths.EXEC, request, seconds + EXEC_MARGIN))

    async def processes(self) -> list[dict[str, Any]]:
        """Return the processes that callers started with `exec`: id, command, exit code and more."""
        found: list[dict[str, Any]] = (await self._get(paths.EXEC))["data"]
        return found

    def process(self, process_id: int) -> Process:
        """Return a handle of a background process, by the id that `Process.id` and `processes` tell."""
        from aenv.sdk.inside.remote_process import Process

        return Process(self, None, checks.integer("process_id", process_id, 1))

    @property
    def files(self) -> Files:
        """The files of the instance."""
        from aenv.sdk.inside.instance_files import Files

        return Files(self)

    def forward(self, port: int, local_port: int = 0, host: str = "127.0.0.1") -> PortForward:
        """Forward a TCP port of this machine to a port inside the instance, within ``async with``.

        Args:
            port: Port on which a program in the instance listens, now or later.
            local_port: Port of this machine; 0: a free one.
            host: Address of this machine to listen on.

        Example:
            ```python
            async with env.forward(8000) as forwarded:
                print(forwarded.url)
            ```
        """
        from aenv.sdk.inside.port_forward import PortForward

        port, local_port = checks.integer("port", port, 1, 65535), checks.integer("local_port", local_port, 0, 65535)
        return PortForward(self, port, local_port, checks.text("host", host))

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


def _stream_timeout(timeout: float | None) -> float:
    return transfer.STREAM_SECONDS if timeout is None else timeout
