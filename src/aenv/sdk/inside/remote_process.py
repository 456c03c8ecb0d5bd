"""A process in an instance: its output while it runs, its input, signals, and its end."""

from __future__ import annotations

import asyncio
import base64
import codecs
import json
from collections.abc import AsyncIterator, Generator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from aenv.authoring.results import ExecResult
from aenv.client.instance_client import InstanceClient
from aenv.errors import EnvironmentError, InstanceUnreachable, from_answer
from aenv.schema import paths

if TYPE_CHECKING:
    from aenv.http.websocket import WebSocket
    from aenv.sdk.instance_session import InstanceSession

PING_SECONDS, PONG_SECONDS = 20.0, 20.0
"""Pause between pings, and the time for an instance to answer one before it is given up."""
MAX_OUTPUT = 8 * 1024 * 1024
"""Bytes that `Process.wait` keeps of each stream."""
PIECE = 1 << 16
END_OF_INPUT = '{"type": "eof"}'
_STREAMS: dict[int, Literal["stdout", "stderr"]] = {1: "stdout", 2: "stderr"}


@dataclass(frozen=True, slots=True)
class ProcessOutput:
    """A piece of a process's output."""

    stream: Literal["stdout", "stderr"]
    data: bytes
    text: str
    """``data`` as text. A character that is split between two pieces is in the second one."""


class Process:
    """A process in an instance; returned by `Environment.exec` with ``stream=True`` or ``background=True``.

    ``async for`` yields its output as `ProcessOutput` while it runs. ``await`` starts the process and returns this
    object, and so does ``async with``, which also closes it at the end. Closing ends a streamed process; a background
    process runs on.

    Example:
        ```python
        async for chunk in env.exec("make test", stream=True):
            print(chunk.text, end="")

        server = await env.exec(["python3", "-m", "http.server"], background=True)
        await server.kill()
        result = await server.wait()
        ```
    """

    def __init__(
        self,
        env: InstanceSession,
        request: dict[str, Any] | None,
        process_id: int | None = None,
        *,
        stdin: str | bytes = b"",
    ) -> None:
        """``request``: what to start; None: attach to the background process with this id.

        ``stdin``: input of a streamed process, which is too long for the request.
        """
        self._env = env
        self._request = request
        self._is_background = request is None or bool(request.get("detach"))
        self._socket: WebSocket | None = None
        self._stdin = stdin
        self._tasks: list[asyncio.Task[None]] = []
        """Tasks of the open connection."""
        self._receiving = False
        self._unread: bytes | None = None
        self._starting = asyncio.Lock()
        self._started = request is None
        self._decoders = {number: codecs.getincrementaldecoder("utf-8")(errors="replace") for number in _STREAMS}
        self.id = process_id
        """Number of the process in its instance; None until it is started."""
        self.pid: int | None = None
        """Process id inside the instance; None until it is known."""
        self.exit_code: int | None = None
        """Exit code once it is known; negative: killed by that signal."""
        self.timed_out = False
        """True if the process was killed at its time limit."""

    # --- start and close

    def __await__(self) -> Generator[Any, Any, Process]:
        return self._start().__await__()

    async def __aenter__(self) -> Process:
        return await self._start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _start(self) -> Process:
        async with self._starting:
            if not self._started:
                if self._is_background:
                    self._take_facts(await self._env._call("exec", paths.EXEC, self._request, None))
                else:
                    await self._connect(paths.EXEC)
                self._started = True
        return self

    async def _connect(self, path: str) -> WebSocket:
        """Open the WebSocket, ask for the process, and wait until it has been started."""
        socket: WebSocket = await self._env._exchange("exec", lambda client, seconds: client.open_websocket(path), None)
        self._socket = socket
        self._env._keep_open(self)
        if path == paths.EXEC:
            await socket.send(json.dumps(self._request))
        self._tasks.append(asyncio.ensure_future(self._ping(socket)))
        first = await self._receive(socket)
        if isinstance(first, dict) and first.get("type") == "started":
            self._take_facts(first)
            if self._stdin:
                self._tasks.append(asyncio.ensure_future(self._feed(socket, self._stdin)))
        elif isinstance(first, bytes):  # it could not be started, and this is why
            self._unread = first
        return socket

    def _take_facts(self, facts: dict[str, Any]) -> None:
        if type(facts.get("id")) is int and type(facts.get("pid")) is int:
            self.id, self.pid = facts["id"], facts["pid"]

    async def close(self) -> None:
        """Close the connection. A streamed process ends; a background process runs on. Closing twice is harmless."""
        socket, self._socket = self._socket, None
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if socket is not None:
            await socket.close()
        self._env._closed(self)

    async def _ping(self, socket: WebSocket) -> None:
        while True:
            await asyncio.sleep(PING_SECONDS)
            seen, was_receiving = socket.received, self._receiving
            await socket.ping()
            await asyncio.sleep(PONG_SECONDS)
            if socket.received == seen and was_receiving and self._receiving:
                await socket.close()
                return

    # --- output

    def __aiter__(self) -> AsyncIterator[ProcessOutput]:
        return self._iterate(close=not self._started)

    async def _iterate(self, *, close: bool) -> AsyncIterator[ProcessOutput]:
        try:
            await self._start()
            while (chunk := await self.read()) is not None:
                yield chunk
        finally:
            if close or self.exit_code is not None:
                await self.close()

    async def read(self) -> ProcessOutput | None:
        """Return the next output; None when the process has ended.

        Raises:
            InstanceEnded: the instance has ended.
            InstanceUnreachable: the connection broke.
        """
        await self._start()
        if self.exit_code is not None:
            return None
        socket = self._socket or await self._connect(f"{paths.EXEC}/{self.id}")
        while True:
            first, self._unread = self._unread, None
            message = first if first is not None else await self._receive(socket)
            if isinstance(message, bytes) and message[:1] in (b"\x01", b"\x02"):
                data = message[1:]
                return ProcessOutput(_STREAMS[message[0]], data, self._decoders[message[0]].decode(data))
            if isinstance(message, dict) and message.get("type") == "exit":
                code = message.get("exit_code")
                self.exit_code = code if type(code) is int else -1
                self.timed_out = message.get("timed_out") is True
                return None

    async def _receive(self, socket: WebSocket) -> bytes | dict[str, Any] | None:
        """Return the next message. Raises the error that it carries, or why there is none."""
        self._receiving = True
        try:
            message = await socket.receive()
        finally:
            self._receiving = False
        if message is None:
            lost = InstanceUnreachable("the connection to the process broke", details={"sent": True})
            raise await self._env._why_ended(lost) or lost
        if isinstance(message, bytes):
            return message
        try:
            found = json.loads(message)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            return None
        if found.get("type") == "error":
            raise from_answer(int(found.get("status") or 400) if str(found.get("status")).isdigit() else 400, found)
        return found

    async def wait(self, timeout: float | None = None) -> ExecResult:
        """Wait for the end; return the exit code, and the output that was not read before.

        Args:
            timeout: Time limit of the wait in seconds. The process runs on after it.

        Raises:
            TimeoutError: the process has not ended in time.
        """
        kept = {"stdout": bytearray(), "stderr": bytearray()}
        async with asyncio.timeout(timeout):
            while (chunk := await self.read()) is not None:
                held = kept[chunk.stream]
                held += chunk.data[: MAX_OUTPUT - len(held)]
        await self.close()
        assert self.exit_code is not None
        texts = {name: data.decode(errors="replace") for name, data in kept.items()}
        return ExecResult(self.exit_code, timed_out=self.timed_out, **texts)

    # --- input and control

    async def write(self, data: str | bytes) -> None:
        """Write to standard input, which must have been left open with ``interactive=True``.

        Waits while the process does not read.
        """
        await self._start()
        body = data.encode() if isinstance(data, str) else bytes(data)
        if self._is_background:
            await self._post("stdin", body)
        elif self._socket is not None:
            await _send_pieces(self._socket, body)

    @staticmethod
    async def _feed(socket: WebSocket, stdin: str | bytes) -> None:
        await _send_pieces(socket, stdin.encode() if isinstance(stdin, str) else stdin)
        await socket.send(END_OF_INPUT)

    async def close_stdin(self) -> None:
        """Tell the process that there is no more input."""
        await self._start()
        if self._is_background:
            await self._post("stdin?eof=true", b"")
        elif self._socket is not None:
            await self._socket.send(END_OF_INPUT)

    async def kill(self, signal: str | int = "KILL") -> None:
        """Send a signal to the process and its children: a name such as ``"TERM"``, or a number."""
        await self._start()
        if self.exit_code is None:
            await self._post("signal", json.dumps({"signal": signal}).encode())

    async def resize(self, rows: int, columns: int) -> None:
        """Set the size of the terminal of a process that was started with ``tty=True``."""
        if self._socket is not None:
            await self._socket.send(json.dumps({"type": "resize", "rows": rows, "columns": columns}))

    async def _post(self, action: str, body: bytes) -> None:
        def send(client: InstanceClient, seconds: float) -> Any:
            return client.exchange("POST", f"{paths.EXEC}/{self.id}/{action}", body, timeout=seconds)

        if self.id is None:
            raise EnvironmentError("the process could not be started")
        await self._env._exchange(f"{action} of process {self.id}", send, None)

    def __repr__(self) -> str:
        state = "running" if self.exit_code is None else f"exit code {self.exit_code}"
        return f"<Process {self.id if self.id is not None else 'not started'} ({state})>"


async def _send_pieces(socket: WebSocket, data: bytes) -> None:
    for position in range(0, len(data), PIECE):
        await socket.send(data[position : position + PIECE])


def start_request(
    command: str | list[str],
    *,
    timeout: float | None,
    cwd: str | None,
    variables: dict[str, str],
    stdin: str | bytes = "",
    **flags: Any,
) -> dict[str, Any]:
    """Return the body of a request that runs a command."""
    given = {"stdin_base64": base64.b64encode(stdin).decode()} if isinstance(stdin, bytes) else {"stdin": stdin}
    request = {"command": command, "timeout": timeout, "cwd": cwd, "env": variables, **given, **flags}
    return {name: value for name, value in request.items() if value not in (None, False, {}, "")}
