"""Routes that run commands: at once, streamed, detached, or on a WebSocket with input, a terminal and signals."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from aenv.authoring.call import Call
from aenv.errors import AEnvError, InvalidArguments, NotFound, problem
from aenv.http.messages import MAX_ANSWER, Answer, Receive, Request, Response, Scope, Send, Stream, Takeover
from aenv.http.raw_stream import RawStream
from aenv.http.websocket import WebSocket, server_head
from aenv.isolation.kernel import linux
from aenv.runtime.calls.workers import Workers
from aenv.runtime.inside.processes import Processes, StartedProcess
from aenv.schema import paths
from aenv.schema.inside import STDERR, STDOUT, Command, Resize, SignalRequest

MAX_OUTPUT = 8 * 1024 * 1024  # bytes kept of each stream
MAX_ESCAPED = 4 * 1024 * 1024
"""Characters of each stream in a response that would be too long: control characters take six bytes each as JSON."""
ROOM = 1 << 20
"""Free bytes that files with output need."""
RESERVED = 1 << 16
"""Bytes of each stream that can be written even if the command itself fills the file system."""
LONGEST_WAIT = 30.0
"""Seconds for which ``GET /exec/ID?wait=`` waits at most."""
START_SECONDS = 30.0
"""Time for a WebSocket client to say what to run."""
NOT_FOUND = 127
"""Exit code of a command that cannot be started, as in a shell."""
_NAMES = {STDOUT: "stdout", STDERR: "stderr"}
_PREFIX = paths.EXEC + "/"

Chunks = AsyncIterator[tuple[int, bytes]]
M = TypeVar("M", bound=BaseModel)


class CommandRoutes:
    """Answers ``/exec`` and what is below it."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._processes = Processes()

    async def answer(self, request: Request) -> Answer | None:
        """Answer a request; None if there is no such route."""
        method, path = request.method, request.path
        if path == paths.EXEC:
            if method == "POST":
                return await self._exec(request)
            if request.wants_upgrade_to(b"websocket"):
                return self._switched(request, self._serve_new)
            return _ok([each.model_dump() for each in self._processes.list()]) if method == "GET" else None
        number, _, rest = path.removeprefix(_PREFIX).partition("/")
        if method == "GET" and not rest:
            started = self._processes.get(number)
            if request.wants_upgrade_to(b"websocket"):
                return self._switched(request, lambda socket: self._serve_kept(socket, started))
            return await self._info(started, request)
        if method == "GET" and rest == "output":
            return _lines(self._kept(self._processes.get(number)), self._processes.get(number))
        if method == "POST" and rest == "stdin":
            return await self._stdin(self._processes.get(number), request)
        if method == "POST" and rest == "signal":
            self._processes.get(number).child.signal(_signal(_parsed(SignalRequest, request.body or b"{}").signal))
            return _ok(None)
        return None

    # --- plain HTTP

    async def _exec(self, request: Request) -> Answer:
        command = _parsed(Command, request.body)
        if command.tty or (command.interactive and not command.detach):
            raise InvalidArguments("tty and interactive need a WebSocket: GET /exec with Upgrade: websocket")
        if not (command.stream or command.detach):
            call = Call("exec")
            if _has_room():
                return _result(await self._workers.run(lambda: _run(command, call), call))
            return _result(await self._collected(command))
        try:
            started = self._start(command)
        except OSError as error:
            if command.detach:
                raise InvalidArguments(f"cannot start it: {error}") from None
            return _failed_lines(error)
        return _ok(started.info().model_dump()) if command.detach else _lines(_output(started), started, self._end)

    async def _collected(self, command: Command) -> dict[str, Any]:
        """Run a command without files for its output: there is no room for them."""
        kept = {STDOUT: bytearray(), STDERR: bytearray()}
        try:
            started = self._start(command)
        except OSError as error:
            return {"exit_code": NOT_FOUND, "stdout": "", "stderr": str(error), "timed_out": False}
        try:
            async for stream, data in _output(started):
                kept[stream] += data[: MAX_OUTPUT - len(kept[stream])]
        finally:
            self._end(started)
        texts = {_NAMES[stream]: data.decode(errors="replace") for stream, data in kept.items()}
        return {"exit_code": started.child.exit_code, "timed_out": started.child.timed_out, **texts}

    def _start(self, command: Command) -> StartedProcess:
        """Start a process and give it all its input, unless that stays open."""
        given = command.stdin.encode() or command.stdin_base64
        try:
            if not given:
                return self._processes.start(command)
            started = self._processes.start(command.model_copy(update={"interactive": True}))
        except ValueError as error:  # such as a NUL character in an argument
            raise InvalidArguments(str(error)) from None
        started.feeding = asyncio.ensure_future(_feed(started, given, end=not command.interactive))
        return started

    def _end(self, started: StartedProcess) -> None:
        """End a process that belongs to a connection which has ended."""
        started.child.abandon()
        self._processes.remove(started)

    async def _info(self, started: StartedProcess, request: Request) -> Response:
        wait = dict(parse_qsl(request.query.decode("latin-1"))).get("wait")
        if wait is not None:
            try:
                seconds = min(max(float(wait), 0.0), LONGEST_WAIT)
            except ValueError:
                raise InvalidArguments(f"wait: '{wait[:20]}' is not a number of seconds") from None
            if started.output is not None and seconds == seconds:
                # Not wait_for: it needs a task from Python 3.12 on, and a request begins outside of one.
                ending = asyncio.ensure_future(started.output.ended.wait())
                try:
                    await asyncio.wait({ending}, timeout=seconds)
                finally:
                    ending.cancel()
        return _ok(started.info().model_dump())

    async def _stdin(self, started: StartedProcess, request: Request) -> Response:
        await started.child.write(request.body)
        if dict(parse_qsl(request.query.decode("latin-1"))).get("eof") in ("1", "true"):
            await started.child.end_input()
        return _ok(None)

    @staticmethod
    def _kept(started: StartedProcess) -> Chunks:
        if started.output is None:
            raise NotFound("the output of a process that is not detached goes to its caller only")
        return started.output.read()

    # --- WebSocket

    @staticmethod
    def _switched(request: Request, serve: Any) -> Takeover:
        async def run(stream: RawStream) -> None:
            socket = WebSocket(stream, is_client=False)
            try:
                await serve(socket)
            except AEnvError as error:
                await socket.send(json.dumps({"type": "error", **problem(error)}, default=repr))
            finally:
                await socket.finish()

        return Takeover(server_head(request), run)

    async def _serve_new(self, socket: WebSocket) -> None:
        """Run the command that the first message asks for, until it ends or the client is gone."""
        try:
            first = await asyncio.wait_for(socket.receive(), START_SECONDS)
        except TimeoutError:
            raise InvalidArguments(f"no command came within {START_SECONDS:g} s") from None
        if first is None:
            return
        command = _parsed(Command, first)
        try:
            started = self._start(command)
        except OSError as error:
            await socket.send(bytes([STDERR]) + f"{error}\n".encode())
            await socket.send(json.dumps({"type": "exit", "exit_code": NOT_FOUND, "timed_out": False}))
            return
        try:
            await self._converse(socket, started, _output(started))
        finally:
            self._end(started)

    async def _serve_kept(self, socket: WebSocket, started: StartedProcess) -> None:
        """Show a detached process, which runs on when the client is gone."""
        await self._converse(socket, started, self._kept(started))

    @staticmethod
    async def _converse(socket: WebSocket, started: StartedProcess, output: Chunks) -> None:
        await socket.send(json.dumps({"type": "started", **started.info().model_dump()}))
        sending = asyncio.ensure_future(_send_output(socket, started, output))
        receiving = asyncio.ensure_future(_take_input(socket, started))
        try:
            await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
            for task in (sending, receiving):
                if task.done():
                    task.result()
        finally:
            for task in (sending, receiving):
                task.cancel()
            await asyncio.wait({sending, receiving})


async def _send_output(socket: WebSocket, started: StartedProcess, output: Chunks) -> None:
    async for stream, data in output:
        await socket.send(bytes([stream]) + data)
    child = started.child
    await socket.send(json.dumps({"type": "exit", "exit_code": child.exit_code, "timed_out": child.timed_out}))


async def _take_input(socket: WebSocket, started: StartedProcess) -> None:
    while (message := await socket.receive()) is not None:
        if isinstance(message, bytes):
            await started.child.write(message)
            continue
        kind = _kind(message)
        if kind == "resize":
            size = _parsed(Resize, message)
            started.child.resize(size.rows, size.columns)
        elif kind == "eof":
            await started.child.end_input()
        else:
            raise InvalidArguments(f"unknown message type {kind!r:.40}; expected resize or eof")


async def _output(started: StartedProcess) -> Chunks:
    while (chunk := await started.child.read()) is not None:
        yield chunk


async def _feed(started: StartedProcess, data: bytes, *, end: bool) -> None:
    await started.child.write(data)
    if end:
        await started.child.end_input()


def _lines(output: Chunks, started: StartedProcess, at_end: Any = None) -> Stream:
    """Answer with lines of JSON while the output arrives."""
    decoders = {stream: codecs.getincrementaldecoder("utf-8")(errors="replace") for stream in _NAMES}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        gone = asyncio.ensure_future(receive())
        copying = asyncio.ensure_future(copy(send))
        try:
            await asyncio.wait({gone, copying}, return_when=asyncio.FIRST_COMPLETED)
            if copying.done():
                copying.result()
        finally:
            for task in (gone, copying):
                task.cancel()
            await asyncio.wait({gone, copying})
            if at_end is not None:
                at_end(started)

    async def copy(send: Send) -> None:
        headers = [(b"content-type", b"application/x-ndjson")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for stream, data in output:
            text = decoders[stream].decode(data)
            if text:
                await _send_line(send, {_NAMES[stream]: text})
        for stream, decoder in decoders.items():
            if rest := decoder.decode(b"", final=True):
                await _send_line(send, {_NAMES[stream]: rest})
        child = started.child
        await _send_line(send, {"exit_code": child.exit_code, "timed_out": child.timed_out})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return Stream(app)


def _failed_lines(error: OSError) -> Response:
    lines = [{"stderr": f"{error}\n"}, {"exit_code": NOT_FOUND, "timed_out": False}]
    return Response(200, b"".join(to_json(line) + b"\n" for line in lines), b"content-type: application/x-ndjson\r\n")


async def _send_line(send: Send, line: dict[str, Any]) -> None:
    await send({"type": "http.response.body", "body": to_json(line) + b"\n", "more_body": True})


def _ok(data: Any) -> Response:
    return Response(200, to_json({"success": True, "data": data}))


def _result(data: dict[str, Any]) -> Response:
    response = _ok(data)
    if len(response.body) > MAX_ANSWER:
        response = _ok({**data, **{name: data[name][:MAX_ESCAPED] for name in _NAMES.values()}})
    return response


def _parsed(model: type[M], text: str | bytes) -> M:
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise InvalidArguments(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _kind(message: str) -> str:
    try:
        found = json.loads(message)
    except ValueError:
        found = None
    return str(found.get("type")) if isinstance(found, dict) else ""


def _signal(given: str | int) -> int:
    """Return the number of a signal, given as 15, TERM or SIGTERM.

    Raises:
        InvalidArguments: there is no such signal.
    """
    try:
        if isinstance(given, int) or given.isdigit():
            return signal.Signals(int(given))
        name = given.upper()
        return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
    except (ValueError, KeyError):
        raise InvalidArguments(f"signal: there is no signal {given!r:.40}; use a name such as TERM") from None


# --- one command, all of its output at once


def _has_room() -> bool:
    """Return whether there is room for files with output. They let programs that a command leaves behind go on."""
    try:
        about = os.statvfs(tempfile.gettempdir())
    except OSError:
        return False
    return about.f_bavail * about.f_frsize >= ROOM and about.f_favail > 3


def _run(command: Command, call: Call) -> dict[str, Any]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as given:
        given.write(command.stdin.encode() or command.stdin_base64)
        given.seek(0)
        for stream in (out, err):
            with contextlib.suppress(OSError):
                linux.reserve(stream.fileno(), RESERVED)
        try:
            process = subprocess.Popen(
                command.command,
                shell=isinstance(command.command, str),
                cwd=command.cwd,
                env={**os.environ, **command.env},
                stdin=given,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # such as a NUL character in an argument
            return {"exit_code": NOT_FOUND, "stdout": "", "stderr": str(error), "timed_out": False}
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
