"""Client of the data plane: calls to one instance."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pydantic_core import from_json, to_json

from aenv.client.backoff import backoff
from aenv.client.tool_progress import OnProgress, read_progress
from aenv.errors import EnvironmentError, FunctionFailed, InstanceUnreachable, NetworkError, NotJson, from_answer
from aenv.http.client import ClientResponse, ConnectFailed, ConnectionLost, DeadlineExceeded, HttpClient
from aenv.http.messages import MAX_ANSWER
from aenv.http.url import ServerUrl
from aenv.schema import paths
from aenv.tracing import spans
from aenv.tracing.context import TIMING
from aenv.tracing.rollout import RolloutTrace

if TYPE_CHECKING:
    from aenv.client.mcp_tools import McpTools
    from aenv.http.raw_stream import RawStream
    from aenv.http.relay import RelayedResponse, UpgradedConnection
    from aenv.http.websocket import WebSocket

MAX_FILE = 1 << 30
"""Limit for a file that is held in memory; `receive_stream` has no limit."""
PATIENCE = 3.0
"""Seconds to retry an instance that accepts no connection: a restarting one is back by then."""


class InstanceClient:
    """Calls to one instance. A request is sent at most once."""

    def __init__(
        self,
        url: ServerUrl,
        *,
        token: str | None = None,
        headers: dict[str, str] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self.url = url
        self.rollout: RolloutTrace | None = None
        """The rollout that the calls belong to, where traces are recorded."""
        self._patience = patience
        self._token = token
        self._headers = headers or {}
        self._mcp: McpTools | None = None
        """The tools through MCP, of a server that turned out to have no tool routes."""
        self._instance = (headers or {}).get(paths.INSTANCE_HEADER, "")
        self._http = HttpClient(url, token=token, headers=(headers or {}).items())

    async def call(self, path: str, arguments: dict[str, Any], *, timeout: float | None) -> Any:
        """POST arguments and return the ``data`` of the response.

        Raises:
            InstanceUnreachable: no connection, or it broke.
            DeadlineExceeded: no response in time.
            EnvironmentError: the response is an error; the subclass tells which kind.
        """
        try:
            sent = to_json(arguments)
        except ValueError as error:
            raise NotJson(f"the arguments are not JSON, so nothing was sent: {error}") from None
        return (await self.exchange("POST", path, sent, timeout=timeout)).get("data")

    async def call_with_progress(
        self, path: str, arguments: dict[str, Any], on_progress: OnProgress, *, timeout: float | None
    ) -> Any:
        """Call a tool as `call` does, and report its progress on the way. A server that cannot report any is called."""
        if self._mcp is not None:
            return await self.call(path, arguments, timeout=timeout)
        try:
            sent = to_json(arguments)
        except ValueError as error:
            raise NotJson(f"the arguments are not JSON, so nothing was sent: {error}") from None
        async with self._relayed("POST", f"{path}?{paths.PROGRESS_QUERY}", sent, timeout) as answer:
            if dict(answer.headers).get(b"content-type") == paths.LINES.encode():
                content = await read_progress(answer.chunks(), on_progress)
            else:
                content = _parsed(await answer.read(MAX_ANSWER))
        if answer.status == 404 and type(content) is not dict:  # no tool routes: nothing has run
            return await self.call(path, arguments, timeout=timeout)
        if answer.status == 200 and type(content) is dict and content.get("success", True):
            return content.get("data")
        raise self._error(answer.status, content)

    async def fetch(self, path: str, *, timeout: float | None) -> bytes:
        """GET a body that is not JSON, of at most `MAX_FILE` bytes."""
        try:
            answer = await self._http.request("GET", path, timeout=timeout, limit=MAX_FILE)
        except NetworkError as error:
            if isinstance(error, DeadlineExceeded):
                raise
            sent = not isinstance(error, ConnectFailed)
            raise InstanceUnreachable(error.message, details={"sent": sent}) from error
        if answer.status != 200:
            raise self._error(answer.status, _parsed(answer.body))
        return answer.body

    async def send_stream(self, path: str, body: AsyncIterable[bytes], *, timeout: float | None) -> dict[str, Any]:
        """PUT a body while it is produced. Returns the JSON of the response."""
        async with self._relayed("PUT", path, body, timeout) as answer:
            content = _parsed(await answer.read(MAX_ANSWER))
            if answer.status == 200 and type(content) is dict:
                return content
            raise self._error(answer.status, content)

    @asynccontextmanager
    async def receive_stream(self, path: str, *, timeout: float | None) -> AsyncIterator[AsyncIterator[bytes]]:
        """GET a body and read it while it arrives."""
        async with self._relayed("GET", path, b"", timeout) as answer:
            if answer.status != 200:
                raise self._error(answer.status, _parsed(await answer.read(MAX_ANSWER)))
            yield answer.chunks()

    @asynccontextmanager
    async def _relayed(
        self, method: str, path: str, body: bytes | AsyncIterable[bytes], timeout: float | None
    ) -> AsyncIterator[RelayedResponse]:
        from aenv.http.relay import Relay

        relay = Relay(self.url)
        try:
            async with asyncio.timeout(timeout):
                yield await relay.send(self._http.head(method, path), body)
        except TimeoutError as error:
            if isinstance(error, NetworkError):
                raise
            raise DeadlineExceeded(f"{method} {path} took over {timeout:g} s") from error
        except (ConnectFailed, ConnectionLost) as error:
            sent = isinstance(error, ConnectionLost)
            raise InstanceUnreachable(error.message, details={"sent": sent}) from error
        finally:
            relay.close()

    async def open_websocket(self, path: str) -> WebSocket:
        """Open a WebSocket.

        Raises:
            InstanceUnreachable: no connection, or it broke.
            EnvironmentError: the instance refuses; the subclass tells which kind.
        """
        from aenv.http import websocket

        key, lines = websocket.client_headers()
        upgraded = await self._upgrade(path, lines)
        if not websocket.is_accepted(key, upgraded.headers):
            upgraded.stream.close()
            raise InstanceUnreachable(f"{self.url} does not speak WebSocket", details={"sent": True})
        return websocket.WebSocket(upgraded.stream, is_client=True)

    async def open_port(self, port: int) -> RawStream:
        """Open a TCP connection to a port in the instance. Raises as `open_websocket` does."""
        return (await self._upgrade(f"{paths.PORT}/{port}", b"connection: Upgrade\r\nupgrade: tcp\r\n\r\n")).stream

    async def _upgrade(self, path: str, lines: bytes) -> UpgradedConnection:
        from aenv.http.relay import Relay, UpgradedConnection

        relay = Relay(self.url)
        try:
            switched = await relay.switch(self._http.head("GET", path) + lines)
            if isinstance(switched, UpgradedConnection):
                return switched
            raise self._error(switched.status, _parsed(await switched.read(MAX_ANSWER)))
        except (ConnectFailed, ConnectionLost) as error:
            sent = isinstance(error, ConnectionLost)
            raise InstanceUnreachable(error.message, details={"sent": sent}) from error

    async def exchange(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout: float | None,
        patience: float | None = None,
    ) -> dict[str, Any]:
        """Send a request and return the JSON object of its response."""
        if self._mcp is not None and path.startswith(paths.TOOLS):
            return await self._over_mcp(self._mcp, path, body, timeout)
        answer = None
        patience = self._patience if patience is None else patience
        send = self._http.request if spans.tracer is None else self._traced
        try:
            answer = await send(method, path, body, timeout=timeout)
        except ConnectFailed as error:
            if patience <= 0:
                raise InstanceUnreachable(error.message, details={"sent": False}) from error
        except ConnectionLost as error:
            raise InstanceUnreachable(error.message, details={"sent": True}) from error
        if answer is None:
            answer = await self._retry_connect(method, path, body, timeout, patience)
        content = _parsed(answer.body)
        if answer.status == 200 and type(content) is dict and content.get("success", True):
            return content
        if answer.status == 404 and type(content) is not dict and path.startswith(paths.TOOLS):
            from aenv.client.mcp_tools import McpTools

            self._mcp = McpTools(self.url, token=self._token, headers=self._headers)
            return await self._over_mcp(self._mcp, path, body, timeout)
        raise self._error(answer.status, content)

    async def _over_mcp(self, tools: McpTools, path: str, body: bytes | None, timeout: float | None) -> dict[str, Any]:
        """List or call tools of a server without tool routes, such as one of the earlier package."""
        try:
            if path == paths.TOOLS:
                return {"data": await tools.list(timeout)}
            name = unquote(path.removeprefix(f"{paths.TOOLS}/"))
            return {"data": await tools.call(name, from_json(body or b"{}"), timeout)}
        except ConnectFailed as error:
            raise InstanceUnreachable(error.message, details={"sent": False}) from error
        except ConnectionLost as error:
            raise InstanceUnreachable(error.message, details={"sent": True}) from error
        except TimeoutError as error:
            raise DeadlineExceeded(f"{self.url} gave no answer within {timeout} s") from error

    async def _retry_connect(
        self, method: str, path: str, body: bytes | None, timeout: float | None, patience: float
    ) -> Any:
        """Retry to connect with backoff; nothing has been sent yet."""
        loop = asyncio.get_running_loop()
        started, attempts = loop.time(), count()
        while True:
            await asyncio.sleep(backoff(next(attempts), first=0.02, longest=0.5))
            spent = loop.time() - started
            left = None if timeout is None else timeout - spent
            if left is not None and left <= 0:
                raise DeadlineExceeded(f"{self.url} did not accept a connection within {timeout:g} s")
            try:
                return await self._http.request(method, path, body, timeout=left)
            except ConnectFailed as error:
                if spent > patience:
                    raise InstanceUnreachable(error.message, details={"sent": False}) from error
            except ConnectionLost as error:
                raise InstanceUnreachable(error.message, details={"sent": True}) from error

    async def _traced(
        self, method: str, path: str, body: bytes | None = None, *, timeout: float | None = None
    ) -> ClientResponse:
        """Send a request inside a span."""
        about = {"aenv_instance": self._instance} if self._instance else {}
        parent = self.rollout.parent if self.rollout is not None else None
        with spans.span(_title(method, path), "client", parent, **about) as span:
            assert span is not None
            began = time.time_ns()
            answer = await self._http.request(method, path, body, timeout=timeout)
            span.set(http_response_status=answer.status)
            if answer.status >= 500:
                span.fail(f"HTTP {answer.status}")
            spans.record_reported(answer.headers.get(TIMING, b""), span.context, began, time.time_ns())
            return answer

    def _error(self, status: int, content: Any) -> EnvironmentError:
        if isinstance(content, dict):
            if status == 500 and content.keys() == {"success", "error"}:  # the earlier package: the function raised
                content = {**content, "code": FunctionFailed.code}
            return from_answer(status, content)
        return from_answer(status, {"error": f"{self.url} answered HTTP {status} without JSON"})

    def close(self) -> None:
        """Close all connections. Calls in flight fail."""
        self._http.close()
        if self._mcp is not None:
            self._mcp.close()


def _title(method: str, path: str) -> str:
    """Return the span name of a call: ``tool echo``, ``function double``, ``reward``."""
    bare = path.partition("?")[0]
    for prefix, kind in ((f"{paths.TOOLS}/", "tool"), (f"{paths.FUNCTIONS}/", "function")):
        if bare.startswith(prefix):
            return f"{kind} {bare.removeprefix(prefix)}"
    return "reward" if bare == paths.REWARD else f"{method} {bare}"


def _parsed(body: bytes) -> Any:
    try:
        return from_json(body)
    except ValueError:
        return None
