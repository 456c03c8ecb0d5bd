"""Tools of a server without our tool routes, through MCP: servers of the earlier package (0.1.x), and any other.

Only what the SDK needs: initialize, ``tools/list`` and ``tools/call`` over streamable HTTP. The answers have the shape
of our own tool routes, so that the caller does not see which of the two was used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import count
from typing import Any

from pydantic_core import from_json, to_json

from aenv._version import __version__
from aenv.errors import EnvironmentError, Fault, from_answer
from aenv.http.client import ClientResponse, HttpClient
from aenv.http.url import ServerUrl
from aenv.schema import paths

PROTOCOL = "2025-06-18"
SESSION = "mcp-session-id"
VERSION = "mcp-protocol-version"
ACCEPT = ("accept", "application/json, text/event-stream")


class McpTools:
    """The tools of one server, through an MCP session that is opened on first use and again if the server lost it."""

    def __init__(self, url: ServerUrl, *, token: str | None, headers: Mapping[str, str]) -> None:
        self._url = url
        self._token = token
        self._headers = [*headers.items(), ACCEPT]
        self._session: HttpClient | None = None
        self._opening = asyncio.Lock()
        self._ids = count(1)

    async def list(self, timeout: float | None) -> list[dict[str, Any]]:
        """Return all tools: name, description and schemas."""
        tools: list[dict[str, Any]] = []
        cursor: dict[str, Any] = {}
        while True:
            page = await self._ask("tools/list", cursor, timeout)
            tools += page.get("tools", [])
            if not page.get("nextCursor"):
                return tools
            cursor = {"cursor": page["nextCursor"]}

    async def call(self, name: str, arguments: Any, timeout: float | None) -> dict[str, Any]:
        """Call a tool and return content, is_error and structured result."""
        result = await self._ask("tools/call", {"name": name, "arguments": arguments}, timeout)
        answer: dict[str, Any] = {"content": result.get("content", []), "is_error": bool(result.get("isError"))}
        if answer["is_error"]:
            answer["fault"] = _fault(answer["content"])
        return answer | _value(answer["content"], result.get("structuredContent"))

    def close(self) -> None:
        """Close the connections. The server forgets the session by itself."""
        if self._session is not None:
            self._session.close()
            self._session = None

    async def _ask(self, method: str, parameters: dict[str, Any], timeout: float | None) -> dict[str, Any]:
        async with asyncio.timeout(timeout):
            session = await self._opened(timeout)
            answer = await self._send(session, method, parameters, timeout)
            if answer.status == 404:  # the server was restarted and does not know the session: nothing has run
                if self._session is session:
                    self.close()
                session = await self._opened(timeout)
                answer = await self._send(session, method, parameters, timeout)
            return self._result(answer)

    async def _opened(self, timeout: float | None) -> HttpClient:
        async with self._opening:
            if self._session is None:
                self._session = await self._open(timeout)
            return self._session

    async def _open(self, timeout: float | None) -> HttpClient:
        """Do the handshake; return a client that sends the session's headers."""
        first = HttpClient(self._url, token=self._token, headers=self._headers)
        try:
            about = {"name": "aenv", "version": __version__}
            asked = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": about}
            answer = await self._send(first, "initialize", asked, timeout)
            agreed = str(self._result(answer).get("protocolVersion", PROTOCOL))
        finally:
            first.close()
        headers = [*self._headers, (VERSION, agreed)]
        given = answer.headers.get(SESSION.encode())
        if given:
            headers.append((SESSION, given.decode("latin-1")))
        session = HttpClient(self._url, token=self._token, headers=headers)
        notice = to_json({"jsonrpc": "2.0", "method": "notifications/initialized"})
        await session.request("POST", paths.MCP, notice, timeout=timeout)
        return session

    async def _send(
        self, client: HttpClient, method: str, parameters: dict[str, Any], timeout: float | None
    ) -> ClientResponse:
        request = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": parameters}
        return await client.request("POST", paths.MCP, to_json(request), timeout=timeout)

    def _result(self, answer: ClientResponse) -> dict[str, Any]:
        """Return the result of a JSON-RPC response, which comes as JSON or as the last event of a stream."""
        if answer.status != 200:
            raise from_answer(answer.status, {"error": f"{self._url}{paths.MCP} answered HTTP {answer.status}"})
        message = _response(answer)
        if message is None:
            raise EnvironmentError(f"the answer of {self._url}{paths.MCP} is not MCP", details={"status": 200})
        if "error" in message:
            said = message["error"]
            text = said.get("message") if isinstance(said, dict) else said
            raise EnvironmentError(f"MCP: {text}", details={"status": 200})
        result = message.get("result")
        return result if isinstance(result, dict) else {}


def _response(answer: ClientResponse) -> dict[str, Any] | None:
    """Return the JSON-RPC response; notifications before it, such as progress, are skipped."""
    if answer.headers.get(b"content-type", b"").startswith(b"text/event-stream"):
        texts = [
            b"\n".join(line[5:].lstrip() for line in event.splitlines() if line.startswith(b"data:"))
            for event in answer.body.replace(b"\r\n", b"\n").split(b"\n\n")
        ]
    else:
        texts = [answer.body]
    for text in texts:
        try:
            message = from_json(text)
        except ValueError:
            continue
        if isinstance(message, dict) and ("result" in message or "error" in message):
            return message
    return None


def _fault(content: list[dict[str, Any]]) -> Fault:
    """Return whose fault an error is; MCP does not say, so the words of FastMCP for the agent's errors decide."""
    text = str(content[0].get("text", "")) if content else ""
    first = text.partition("\n")[0]
    wrong_call = first.startswith("Unknown tool") or ("validation error" in first and " for call[" in first)
    return "policy" if wrong_call else "env"


def _value(content: list[dict[str, Any]], structured: Any) -> dict[str, Any]:
    """Return the fields with the value that the tool returned, as `ToolResult.data` reads it.

    FastMCP wraps a value that is no object as ``{"result": value}``. The text beside it is then not that object.
    """
    only = content[0] if len(content) == 1 and content[0].get("type") == "text" else None
    if structured is None:
        return {}
    if only is None:
        return {"structured": structured}
    wrapped = isinstance(structured, dict) and list(structured) == ["result"]
    if wrapped and structured["result"] == only["text"]:
        return {}
    try:
        shown = from_json(only["text"])
    except ValueError:
        return {"structured": structured}
    if shown == structured or (wrapped and shown == structured["result"]):
        return {"is_json": True}
    return {"structured": structured}
