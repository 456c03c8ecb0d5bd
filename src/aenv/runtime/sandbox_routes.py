"""Routes for commands, files and ports inside a sandbox, for callers with its token.

Only sandboxes have them: elsewhere they would give access to the host. Most instances never use them, so what they need
is imported on first use.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import parse_qsl

from pydantic_core import to_json

from aenv.authoring.call import Call
from aenv.errors import InvalidArguments, NotFound, UsageError
from aenv.http import handed_connections
from aenv.http.messages import STATUS_LINES, Answer, Receive, Request, Response, Scope, Send, Stream, Takeover
from aenv.http.raw_stream import RawStream, join
from aenv.runtime.calls.workers import Workers
from aenv.schema import paths

if TYPE_CHECKING:
    from aenv.runtime.inside.command_routes import CommandRoutes
    from aenv.runtime.inside.file_routes import FileRoutes

log = logging.getLogger("aenv.runtime")

T = TypeVar("T")
_PORT = paths.PORT + "/"
_PLATFORM_HEAD = STATUS_LINES[101] + b"connection: Upgrade\r\nupgrade: %s\r\n\r\n" % paths.PLATFORM_PROTOCOL.encode()


class SandboxRoutes:
    """Answers ``/exec``, ``/files``, ``/archive``, ``/port`` and ``/platform``."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._commands: CommandRoutes | None = None
        self._files: FileRoutes | None = None

    async def answer(self, request: Request) -> Answer | None:
        """Answer a request; None if it is for none of these routes."""
        path = request.path
        if path == paths.EXEC or path.startswith(paths.EXEC + "/"):
            if self._commands is None:
                from aenv.runtime.inside.command_routes import CommandRoutes

                self._commands = CommandRoutes(self._workers)
            return await self._commands.answer(request)
        if path == paths.FILES or path.startswith(paths.FILES + "/"):
            if self._files is None:
                from aenv.runtime.inside.file_routes import FileRoutes

                self._files = FileRoutes(self._workers)
            return await self._files.answer(request)
        if path == paths.ARCHIVE and request.method in ("GET", "PUT"):
            return await (self._pack if request.method == "GET" else self._unpack)(request)
        if path.startswith(_PORT) and request.wants_upgrade_to(b"tcp"):
            return await self._port(path.removeprefix(_PORT))
        if path == paths.PLATFORM and request.wants_upgrade_to(paths.PLATFORM_PROTOCOL.encode()):
            return Takeover(_PLATFORM_HEAD, _keep_connection)
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

    async def _pack(self, request: Request) -> Stream:
        from aenv.isolation.files.tar_streams import pack_stream
        from aenv.runtime.inside.file_routes import refuse_proc, refused

        path = Path(_path_of(request))
        refuse_proc(str(path))
        try:
            is_one = path.is_dir() or path.is_file()
        except OSError as error:
            raise refused(error, str(path)) from None
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
        from aenv.runtime.inside.file_routes import refuse_proc, refused

        path = _path_of(request)
        refuse_proc(path)
        try:
            done = await unpack_stream(request.stream or _whole(request.body), Path(path), self._in_thread)
        except UsageError as error:
            raise InvalidArguments(error.message, details=error.details) from None
        except OSError as error:
            raise refused(error, path) from None
        return Response(200, to_json({"success": True, "data": {"path": path, **done._asdict()}}))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        done: T = await self._workers.run(work, Call("archive"))
        return done


def _log_skipped(name: str, why: Exception) -> None:
    """Log a file that cannot be sent: programs in an instance must not keep a caller from reading a folder."""
    log.warning("left out of the tar: %s: %s", name[:200], why)


async def _keep_connection(stream: RawStream) -> None:
    """Keep a connection that the platform hands over. Clients may run in other event loops, so they get the socket."""
    transport, _ = stream.detach()  # the platform sends nothing before the first request
    expected = handed_connections.connections
    if expected is not None and not transport.is_closing():
        expected.add(transport.get_extra_info("socket").dup())


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


async def _whole(body: bytes) -> AsyncIterator[bytes]:
    yield body
