"""A model behind an HTTP API: OpenAI Chat Completions or Responses, or Anthropic Messages."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack, aclosing
from typing import Any, Literal

from aenv.client.backoff import backoff
from aenv.errors import ConfigError, NetworkError, UsageError
from aenv.http.client import ClientResponse, ConnectFailed, DeadlineExceeded, ResponseTooLarge
from aenv.http.forward_proxies import proxy_for
from aenv.http.messages import MAX_ANSWER
from aenv.http.relay import Relay
from aenv.http.url import ServerUrl
from aenv.rollout.agents.scripted import ScriptedModel
from aenv.rollout.model import (
    ContextExceeded,
    Model,
    ModelRefused,
    ModelRequest,
    ModelUnavailable,
    ModelUnreachable,
    Reply,
)
from aenv.rollout.named_objects import load_object, names_object
from aenv.rollout.wires.anthropic import Anthropic
from aenv.rollout.wires.base import InvalidAnswer, Wire
from aenv.rollout.wires.chat_completions import Chat
from aenv.rollout.wires.responses import Responses
from aenv.tracing.waits import waiting_for

Api = Literal["chat", "responses", "anthropic"]
WIRES: dict[str, Wire] = {"chat": Chat(), "responses": Responses(), "anthropic": Anthropic()}

RETRIES = 8
REQUEST_SECONDS = 600.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
PATIENCE = 5.0
"""Seconds of refused connections after which the address of a server that never answered is taken for wrong."""
_RETRIED = {408, 409, 425, 429}
_TOO_LONG = ("context_length", "context length", "context window", "prompt is too long", "too many tokens")


class ModelEndpoint:
    """A model behind an HTTP API.

    Failures of the server (429, 5xx, broken connections, cut streams, invalid JSON) are retried with exponential
    backoff, within the deadline of the episode. If nothing listens at its address from the first request on, requests
    fail with `ModelUnreachable` after some seconds; once the server has answered, it is waited for. A server elsewhere
    is reached through the proxy that ``HTTP_PROXY``, ``HTTPS_PROXY`` and ``NO_PROXY`` name.

    Args:
        name: Name of the model.
        url: Base URL, such as ``https://api.openai.com/v1``. Default: ``OPENAI_BASE_URL`` or ``ANTHROPIC_BASE_URL``,
            else the vendor's.
        api: ``chat``, ``responses`` or ``anthropic``.
        key: API key; empty: none. Default: ``AENV_MODEL_KEY``, else ``OPENAI_API_KEY`` or ``ANTHROPIC_API_KEY``.
        stream: Ask for a stream, which keeps connections alive during long answers.
        retries: Maximum number of retries of one request.
        headers: Further headers.
        request_seconds: Time limit of one request; the deadline of the episode may be earlier.
    """

    def __init__(
        self,
        name: str,
        url: str = "",
        *,
        api: Api = "chat",
        key: str | None = None,
        stream: bool = True,
        retries: int = RETRIES,
        headers: Mapping[str, str] | None = None,
        request_seconds: float = REQUEST_SECONDS,
    ) -> None:
        if api not in WIRES:
            raise UsageError(f"unknown model API {api!r}; expected one of {', '.join(WIRES)}")
        self.name = name
        self.url = (url or _default_url(api)).rstrip("/")
        self.api = api
        self.key = _default_key(api) if key is None else key or None
        self._wire = WIRES[api]
        self._is_openai = api == "chat" and ServerUrl.parse(self.url).host == "api.openai.com"
        self._stream = stream
        self._retries = retries
        self._request_seconds = request_seconds
        own = {"accept": "application/json, text/event-stream", **self._wire.headers(self.key), **(headers or {})}
        for name, value in own.items():
            if any(char in f"{name}{value}" for char in "\r\n\0"):
                raise UsageError(f"the header or key {name} contains a line break")
        self._lines = "".join(f"{name}: {value}\r\n" for name, value in own.items()).encode("latin-1", "replace")
        self._relay: Relay | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_answered = False
        self._refused_since: float | None = None

    async def complete(self, request: ModelRequest) -> Reply:
        """Return the model's answer; see `Model.complete`."""
        body = json.dumps(self._body(request)).encode()
        deadline = None if request.timeout is None else time.monotonic() + request.timeout
        with ExitStack() as stack:
            waiting: waiting_for | None = None
            for attempt in range(self._retries + 1):
                answer, failure = await self._try(body, deadline)
                if isinstance(answer, Reply):
                    return answer
                asked = answer.headers.get(b"retry-after", b"").decode("latin-1") if answer else None
                pause = backoff(attempt, first=FIRST_PAUSE, longest=LONGEST_PAUSE, asked=asked)
                if attempt == self._retries:
                    break
                if deadline is not None and time.monotonic() + pause >= deadline:
                    raise ModelUnavailable(f"{self.name}: no answer before the deadline; last failure: {failure}")
                request.on_failure(str(answer.status) if answer and answer.status != 200 else failure)
                text = f"the model {self.name}: {failure}"
                if waiting is None:
                    waiting = stack.enter_context(waiting_for(text))
                waiting.text = text
                await asyncio.sleep(pause)
        raise ModelUnavailable(f"{self.name}: no answer after {self._retries} retries; last failure: {failure}")

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        body = self._wire.body(self.name, request, stream=self._stream)
        if self._is_openai and "max_tokens" in body:  # whose newer models refuse the name that all others know
            body["max_completion_tokens"] = body.pop("max_tokens")
        return body

    async def _try(self, body: bytes, deadline: float | None) -> tuple[Reply | ClientResponse | None, str]:
        """Send the request once. Return the reply, or the response and the failure that may pass."""
        left = None if deadline is None else deadline - time.monotonic()
        seconds = self._request_seconds if left is None else min(left, self._request_seconds)
        try:
            async with asyncio.timeout(max(seconds, 0.001)):
                answer, first = await self._send(body)
        except TimeoutError as error:
            if left is not None and seconds == left:
                raise DeadlineExceeded(f"{self.url} has not answered within {seconds:g} s") from error
            return None, f"no answer within {seconds:g} s"
        except NetworkError as error:
            self._check_reachable(error)
            return None, error.message
        self._has_answered = True
        if answer.status == 200:
            try:
                reply = self._wire.parse(answer.body, answer.headers.get(b"content-type", b""))
                reply.first_token_seconds = first
                return reply, ""
            except InvalidAnswer as error:
                return answer, f"invalid answer: {error}"
        said = self._error_text(answer)
        if answer.status in _RETRIED or answer.status >= 500:
            return answer, f"HTTP status {answer.status}: {said}"
        if answer.status in (400, 413, 422) and any(words in said.lower() for words in _TOO_LONG):
            raise ContextExceeded(f"{self.name}: {said}")
        raise ModelRefused(f"{self.url} refuses requests to {self.name} with HTTP status {answer.status}: {said}")

    async def _send(self, body: bytes) -> tuple[ClientResponse, float | None]:
        """Send the request and read the response while it arrives; return it, and when a stream began."""
        relay, began = self._connected(), time.monotonic()
        url = relay.url
        head = b"POST %s HTTP/1.1\r\nhost: %s\r\n%s%scontent-type: application/json\r\n" % (
            relay.target(f"{url.prefix}{self._wire.path}".encode()), url.authority.encode(), relay.proxy_lines,
            self._lines,
        )  # fmt: skip
        response = await relay.send(head, body)
        headers = dict(response.headers)
        is_stream = headers.get(b"content-type", b"").startswith(b"text/event-stream")
        first: float | None = None
        parts: list[bytes] = []
        size = 0
        async with aclosing(response.chunks()) as chunks:
            async for data in chunks:
                if first is None and is_stream:
                    first = round(time.monotonic() - began, 6)
                parts.append(data)
                size += len(data)
                if size > MAX_ANSWER:
                    raise ResponseTooLarge(f"the answer is over the limit of {MAX_ANSWER} bytes")
        return ClientResponse(response.status, b"".join(parts), headers), first

    def _connected(self) -> Relay:
        loop = asyncio.get_running_loop()
        if self._relay is None or loop is not self._loop:  # a second asyncio.run: connections died with their loop
            self.close()
            url = ServerUrl.parse(self.url)
            self._relay, self._loop = Relay(url, proxy=proxy_for(url)), loop
        return self._relay

    def _check_reachable(self, error: NetworkError) -> None:
        """Raise ModelUnreachable if nothing has ever listened at the address, and no retry is likely to change that."""
        if self._has_answered or not isinstance(error, ConnectFailed):
            return
        unknown = "unknown_host" in error.details
        if not unknown and not error.refused:
            return
        now = time.monotonic()
        self._refused_since = self._refused_since or now
        if now - self._refused_since >= PATIENCE:
            raise ModelUnreachable(
                f"no model answers at {self.url}: {'there is no such host' if unknown else 'connection refused'}",
                details={"hint": "Is the model's server running, and is its URL right?"},
            )

    def _error_text(self, answer: ClientResponse) -> str:
        """Return the server's message, without the key, which some servers repeat."""
        text = answer.body.decode("utf-8", "replace")
        try:
            error: Any = json.loads(text)["error"]
            text = str(error["message"] if isinstance(error, dict) else error)
            code = error.get("code") if isinstance(error, dict) else None
            text = f"{text} ({code})" if code else text
        except (ValueError, KeyError, TypeError):
            pass
        return (text.replace(self.key, "***") if self.key else text)[:500]

    def close(self) -> None:
        """Close all connections."""
        if self._relay is not None:
            self._relay.close()
            self._relay = None


def find_model(given: Model | str | None, *, url: str = "") -> Model | None:
    """Return the model that ``given`` is or names: ``[API:]NAME[@URL]``, or ``FILE.py:NAME`` of a function.

    Raises:
        UsageError: the name is invalid.
    """
    if given is None or not isinstance(given, str):
        return given
    api, colon, rest = given.partition(":")
    if colon and api in WIRES:
        name, _, at = rest.partition("@")
    elif names_object(given):
        loaded = load_object(given)
        made: Model = loaded if hasattr(loaded, "complete") else ScriptedModel(loaded, given)
        return made
    else:
        api, (name, _, at) = "chat", given.partition("@")
    if not name:
        raise UsageError(f"invalid model {given!r}; expected NAME, API:NAME or API:NAME@URL")
    try:
        return ModelEndpoint(name, url or at, api=api)  # type: ignore[arg-type]
    except ConfigError as error:
        raise UsageError(f"model {given!r}: {error.message}") from None


def _default_url(api: Api) -> str:
    if api == "anthropic":
        return os.environ.get("ANTHROPIC_BASE_URL") or "https://api.anthropic.com"
    return os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"


def _default_key(api: Api) -> str | None:
    own = os.environ.get("ANTHROPIC_API_KEY") if api == "anthropic" else os.environ.get("OPENAI_API_KEY")
    return os.environ.get("AENV_MODEL_KEY") or own or None
