"""The proxy: one HTTP server for many sessions, in front of one model endpoint.

Bodies pass unchanged in both directions, streams while they arrive. The upstream key is added here, so that agents
never see it. An exchange is recorded after its last byte was passed on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aenv.errors import AEnvError
from aenv.http.client import ConnectFailed, ConnectionLost
from aenv.http.forward_proxies import proxy_for
from aenv.http.messages import Answer, Request, Response
from aenv.http.relay import Relay, RelayedResponse
from aenv.http.reverse_proxy import HOP_BY_HOP, NOT_RELAYED, forwarded_head, relayed_answer
from aenv.http.server import HttpServer
from aenv.http.url import ServerUrl
from aenv.rollout.budget import Budget
from aenv.rollout.capture.session import CapturedExchange, CaptureSession, EventSink
from aenv.rollout.episode import Price
from aenv.rollout.model import Reply
from aenv.rollout.wires.anthropic import Anthropic
from aenv.rollout.wires.base import Wire
from aenv.rollout.wires.chat_completions import Chat
from aenv.rollout.wires.responses import Responses
from aenv.tracing.logging import getLogger

log = getLogger("capture")

MAX_REQUEST = 256 << 20
"""Limit for a request: images are sent in it."""
_RECORDED: Mapping[str, Wire] = {
    "/v1/chat/completions": Chat(),
    "/v1/responses": Responses(),
    "/v1/messages": Anthropic(),
}
"""Recorded APIs by path."""
_COUNTED = frozenset(("/v1/embeddings", "/v1/completions"))
"""Paths whose requests count in the budget, without a record of their messages."""
_FREE = frozenset(("/v1/models", "/v1/messages/count_tokens"))
"""Further paths that are forwarded."""
SETTLE_SECONDS = 30.0
"""Time limit for the responses that are under way when a session is closed."""
MAX_ERROR = 1 << 20
"""Limit for the body of an error response."""
_OWN_HEADERS = frozenset((b"authorization", b"x-api-key", b"api-key", b"accept-encoding", b"cookie"))
"""Headers of agents that are not forwarded: the proxy has its own key, and reads responses."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """The model endpoint behind a proxy."""

    url: str
    """Base URL, with or without ``/v1``."""
    api_key: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further headers, such as an organisation."""

    def root(self) -> ServerUrl:
        """Return the address without ``/v1``."""
        return ServerUrl.parse(self.url.rstrip("/").removesuffix("/v1"))


class CaptureProxy:
    """A proxy for any number of sessions; an async context manager.

    Example:
        ```python
        async with CaptureProxy(Upstream("https://api.openai.com/v1", key)) as proxy:
            session = proxy.open(recorder)
            await run_agent(session.variables)  # OPENAI_BASE_URL and the like
            await proxy.close_session(session)
        ```
    """

    def __init__(self, upstream: Upstream, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._upstream = upstream
        root = upstream.root()
        self._prefix = root.prefix.encode()
        self._authority = root.authority.encode()
        self._relay = Relay(root, proxy=proxy_for(root))
        self._server = HttpServer(self._handle, max_body=MAX_REQUEST)
        self._address = (host, port)
        self._sessions: dict[str, CaptureSession] = {}
        self.url = ""
        """Address, once it has started."""

    async def __aenter__(self) -> CaptureProxy:
        self.url = await self._server.open(*self._address, None)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._server.close(grace=0.0)
        self._relay.close()

    def open(
        self,
        sink: EventSink | None = None,
        *,
        budget: Budget | None = None,
        price: Price | None = None,
        on_reply: Callable[[Reply], None] | None = None,
        add_fields: Mapping[str, Any] | None = None,
    ) -> CaptureSession:
        """Open a session with a base URL of its own.

        Args:
            sink: Takes the messages as events, such as an `EpisodeRecorder`.
            budget: Checked before each request; a spent one refuses it with status 403, which clients do not retry.
                A request waits while others that are under way may use up the rest.
            price: Price of the tokens, for servers that report no cost.
            on_reply: Called for each reply, in place of counting it in the budget.
            add_fields: Fields to add to every recorded request, such as ``{"return_token_ids": True}`` for vLLM. It is
                the only way in which a request is changed.
        """

        def count(reply: Reply) -> None:
            if price is not None and not reply.cost:
                reply.cost = price.of(reply)
            if budget is not None:
                budget.use(reply.input_tokens, reply.output_tokens, reply.cost)

        session = CaptureSession(self.url, sink, budget=budget, on_reply=on_reply or count, add_fields=add_fields)
        self._sessions[session.token] = session
        return session

    async def close_session(self, session: CaptureSession) -> None:
        """Refuse further requests of a session, and wait until all others are recorded, though not for ever."""
        self._sessions.pop(session.token, None)
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                await session.settled()
        except TimeoutError:
            log.warning("the model has not answered a request of a session that has ended")

    async def _handle(self, request: Request) -> Answer:
        _, _, rest = request.path.partition("/s/")
        token, _, path = rest.partition("/")
        session, path = self._sessions.get(token), f"/{path}"
        wire = _RECORDED.get(path)
        shape = "anthropic" if path.startswith("/v1/messages") else "openai"
        if session is None:
            return _error(401, "no such session; the rollout has ended", "invalid_session", shape)
        costs = wire is not None or path in _COUNTED
        if not (request.method == "POST" if costs else path in _FREE):
            return _error(404, f"{request.method} {path} is not forwarded by this proxy", "not_found", shape)
        reserved = 0
        try:
            if costs:
                reserved = await session.admitted(request.body)
            else:
                session.check()
        except AEnvError as error:
            return _error(403, error.message, error.code, shape)
        if self._sessions.get(token) is not session:  # closed while the request waited
            return _error(401, "no such session; the rollout has ended", "invalid_session", shape)
        if wire is not None and session.add_fields:
            request.body = _with_fields(request.body, session.add_fields)
        exchange = CapturedExchange(session, path, wire, request.body, reserved) if costs else None
        head = forwarded_head(request, self._target(request, path), self._headers(shape), HOP_BY_HOP | _OWN_HEADERS)
        try:
            response = await self._relay.send(head + self._relay.proxy_lines, request.body)
            if response.status >= 400:
                return await self._refusal(response, exchange)
        except (ConnectFailed, ConnectionLost) as error:
            message = f"the model endpoint did not answer: {error.message}"
            if exchange is not None:
                exchange.failed(502, message)
            return _error(502, message, "upstream_failed", shape)
        except BaseException:
            if exchange is not None:
                exchange.abandon()
            raise
        if exchange is None:
            return relayed_answer(response, request)
        exchange.started(response.status, dict(response.headers).get(b"content-type", b""))
        return relayed_answer(response, request, exchange)

    async def _refusal(self, response: RelayedResponse, exchange: CapturedExchange | None) -> Response:
        """Return an error of the model endpoint without the key, which some servers repeat."""
        body = await response.read(MAX_ERROR)
        lines = b"".join(b"%s: %s\r\n" % pair for pair in response.headers if pair[0] not in NOT_RELAYED)
        if key := self._upstream.api_key.encode():
            body, lines = body.replace(key, b"***"), lines.replace(key, b"***")
        if exchange is not None:
            exchange.failed(response.status, body)
        return Response(response.status, body, lines)

    def _target(self, request: Request, path: str) -> bytes:
        query = b"?" + request.query if request.query else b""
        return self._relay.target(self._prefix + path.encode() + query)

    def _headers(self, shape: str) -> list[tuple[bytes, bytes]]:
        own = [(b"host", self._authority), (b"accept-encoding", b"identity")]
        key = self._upstream.api_key.encode()
        if key and shape == "anthropic":
            own.append((b"x-api-key", key))
        if key:
            own.append((b"authorization", b"Bearer " + key))
        return [*own, *((name.lower().encode(), value.encode()) for name, value in self._upstream.headers.items())]


def _with_fields(body: bytes, fields: Mapping[str, Any]) -> bytes:
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return body
    return json.dumps({**request, **fields}).encode() if isinstance(request, dict) else body


def _error(status: int, message: str, code: str, shape: str) -> Response:
    if shape == "anthropic":
        kind = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}.get(status, "api_error")
        said: dict[str, Any] = {"type": "error", "error": {"type": kind, "message": message}}
    else:
        said = {"error": {"message": message, "type": code, "code": code, "param": None}}
    return Response(status, json.dumps(said).encode())
