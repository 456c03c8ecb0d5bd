"""Routes for commands, files and ports inside a sandbox, for callers with its token.

Only sandboxes have them: elsewhere they would give access to the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from aenv.authoring.call import Call
from aenv.errors import AEnvError, Forbidden, FunctionFailed, InvalidArguments, NotFound, UsageError
from aenv.http.messages import STATUS_LINES, Answer, Receive, Request, Response, Scope, Send, Stream, Takeover
from aenv.http.raw_stream import RawStream, join
from aenv.runtime.workers import Workers
from aenv.schema import paths

log = logging.getLogger("aenv.runtime")

T = TypeVar("T")
MAX_OUTPUT = 8 * 1024 * 1024  # bytes kept of each stream
_PORT = paths.PORT + "/"
_BINARY = b"content-type: application/octet-stream\r\n"


class Command(BaseModel):
    """A command to run."""

    model_config = ConfigDict(extra="forbid")

    command: str | Annotated[list[str], Field(min_length=1)]
    """A line for the shell, or a program and its arguments."""
    timeout: float | None = None
    cwd: str | None = None
    stdin: str = ""


class SandboxRoutes:
    """Answers ``/exec``, ``/files``, ``/archive`` and ``/port``."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    async def answer(self, request: Request) -> Answer | None:
        """Answer a request; None if it is for none of these routes."""
        if (request.method, request.path) == ("POST", paths.EXEC):
            return await self._exec(request)
        if request.path == paths.FILES and request.method in ("GET", "PUT"):
            return await self._file(request)
        if request.path == paths.ARCHIVE and request.method in ("GET", "PUT"):
            return await (self._pack if request.method == "GET" else self._unpack)(request)
        if request.path.startswith(_PORT) and request.wants_upgrade_to(b"tcp"):
            return await self._port(request.path.removeprefix(_PORT))
        return None

    async def _port(self, text: str) -> Takeover:
        """Connect the caller to a port of the sandbox's network."""
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
        if not 1 <= number <= 65535:
            raise InvalidArguments(f"'{text[:20]}' is not a port")
        try:
            pipe = await _connected(number)
        except OSError:
            raise NotFound(f"nothing listens on port {number}") from None
        head = STATUS_LINES[101] + b"connection: Upgrade\r\nupgrade: tcp\r\n\r\n"
        return Takeover(head, lambda theirs: join(theirs, pipe))

    async def _exec(self, request: Request) -> Response:
        try:
            command = Command.model_validate_json(request.body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            raise InvalidArguments(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        call = Call("exec")
        done = await self._workers.run(lambda: _run(command, call), call)
        return Response(200, to_json({"success": True, "data": done}))

    async def _file(self, request: Request) -> Response:
        path = _path_of(request)
        try:
            if request.method == "GET":
                data = await self._workers.run(Path(path).read_bytes, Call("read"))
                return Response(200, data, _BINARY)
            await self._workers.run(lambda: _write(Path(path), request.body), Call("write"))
        except OSError as error:
            raise _refused(error, path) from None
        return Response(200, to_json({"success": True, "data": {"path": path, "size": len(request.body)}}))

    async def _pack(self, request: Request) -> Stream:
        from aenv.isolation.files.tar_streams import pack_stream

        path = Path(_path_of(request))
        try:
            is_one = path.is_dir() or path.is_file()
        except OSError as error:
            raise _refused(error, str(path)) from None
        if not is_one:
            raise NotFound(f"No such file or directory: {path}")

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            gone = asyncio.ensure_future(receive())
            headers = [(b"content-type", b"application/x-tar")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            try:
                async with contextlib.aclosing(pack_stream(path, self._in_thread, on_skipped=_log_skipped)) as tar:
                    async for data in tar:
                        if gone.done():
                            return
                        await send({"type": "http.response.body", "body": data, "more_body": True})
            except (OSError, UsageError) as error:
                log.warning("the tar of %s broke off: %s", path, error)
                return  # without the end of the body, which tells the reader that the tar is incomplete
            finally:
                gone.cancel()
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        return Stream(app)

    async def _unpack(self, request: Request) -> Response:
        from aenv.isolation.files.tar_streams import unpack_stream

        path = _path_of(request)
        try:
            done = await unpack_stream(request.stream or _whole(request.body), Path(path), self._in_thread)
        except UsageError as error:
            raise InvalidArguments(error.message, details=error.details) from None
        except OSError as error:
            raise _refused(error, path) from None
        return Response(200, to_json({"success": True, "data": {"path": path, **done._asdict()}}))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        done: T = await self._workers.run(work, Call("archive"))
        return done


def _log_skipped(name: str, why: Exception) -> None:
    """Log a file that cannot be sent: programs in an instance must not keep a caller from reading a folder."""
    log.warning("left out of the tar: %s: %s", name[:200], why)


async def _connected(port: int) -> RawStream:
    loop = asyncio.get_running_loop()
    try:
        _, pipe = await loop.create_connection(RawStream, "127.0.0.1", port)
    except OSError:
        _, pipe = await loop.create_connection(RawStream, "::1", port)
    return pipe


def takes_any_body(request: Request) -> bool:
    """Return whether the body of a request is unpacked as it arrives, and so may have any length."""
    return request.path == paths.ARCHIVE and request.method == "PUT"


def _path_of(request: Request) -> str:
    path = dict(parse_qsl(request.query.decode("latin-1"))).get("path")
    if not path or "\0" in path:
        raise InvalidArguments("path: missing or invalid; send ?path=/where")
    return path


def _refused(error: OSError, path: str) -> AEnvError:
    """Return the error for a file that cannot be read or written, by the party at fault."""
    text = f"{error.strerror or error}: {path}"
    if isinstance(error, FileNotFoundError):
        return NotFound(text)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Forbidden(text)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        return FunctionFailed(text)
    return InvalidArguments(text)


async def _whole(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _run(command: Command, call: Call) -> dict[str, Any]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as given:
        given.write(command.stdin.encode())
        given.seek(0)
        try:
            process = subprocess.Popen(
                command.command,
                shell=isinstance(command.command, str),
                cwd=command.cwd,
                stdin=given,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # such as a NUL character in an argument
            return {"exit_code": 127, "stdout": "", "stderr": str(error), "timed_out": False}
        timed_out = not _finished(process, command.timeout, call)
        if timed_out:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        texts = {}
        for name, stream in (("stdout", out), ("stderr", err)):
            stream.seek(0)
            texts[name] = stream.read(MAX_OUTPUT).decode(errors="replace")
        return {"exit_code": process.returncode, "timed_out": timed_out, **texts}


def _finished(process: subprocess.Popen[bytes], timeout: float | None, call: Call) -> bool:
    """Wait for a process; return whether it ended by itself, in time, before the call was cancelled."""
    left = timeout if timeout is not None else float("inf")
    while left > 0 and not call.cancelled:
        try:
            process.wait(min(left, 0.5))
        except subprocess.TimeoutExpired:
            left -= 0.5
        else:
            return True
    return False
