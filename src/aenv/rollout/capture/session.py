"""Sessions of the capture proxy: one rollout with a base URL of its own, its budget and its record."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from aenv.errors import AEnvError
from aenv.rollout.budget import Budget
from aenv.rollout.capture.conversations import Conversations
from aenv.rollout.capture.recorded_messages import recorded
from aenv.rollout.model import Reply
from aenv.rollout.wires.base import InvalidAnswer, Wire, events_of
from aenv.tracing.logging import getLogger

log = getLogger("capture")

CHARACTERS_PER_TOKEN = 4
"""Used to estimate tokens where a server reports no usage."""
RESERVED = 4096
"""Tokens of an answer that are reserved for a request which names no limit, while it runs beside others."""
MAX_KEPT = 64 << 20
"""Bytes of a response that are kept until it is recorded. The agent gets all of a longer one; its record is cut."""
NOTED = 4000
"""Characters of an error response that are recorded."""
_MESSAGES = frozenset(("messages", "input", "system", "instructions"))


class EventSink(Protocol):
    """Takes events; an `EpisodeRecorder` does."""

    def append(self, kind: str, /, **fields: Any) -> object:
        """Record an event."""
        ...


class CaptureSession:
    """Rollout behind the proxy; opened by `CaptureProxy.open`."""

    def __init__(
        self,
        root: str,
        sink: EventSink | None = None,
        *,
        budget: Budget | None = None,
        on_reply: Callable[[Reply], None] = lambda reply: None,
        add_fields: Mapping[str, Any] | None = None,
    ) -> None:
        self.token = secrets.token_urlsafe(24)
        self.url = f"{root}/s/{self.token}"
        """Base URL for Anthropic's clients (``ANTHROPIC_BASE_URL``)."""
        self.add_fields = dict(add_fields or {})
        """Fields added to the body of every recorded request, such as ``return_token_ids``; none by default."""
        self.requests = 0
        """Requests that were forwarded."""
        self.refused: AEnvError | None = None
        """Why requests are refused: a budget is spent, or nothing can be recorded."""
        self.failed_status: int | None = None
        """Status of the last response, if it was an error that the agent has not caused."""
        self._answered: set[tuple[str, str]] = set()
        """API and model of the requests that were answered."""
        self._sink = sink
        self._budget = budget
        self._on_reply = on_reply
        self._conversations = Conversations()
        self._open = 0
        self._reserved = 0
        self._dearest = 0.0
        self._settled = asyncio.Event()
        self._settled.set()
        self._recorded = asyncio.Event()

    @property
    def openai_url(self) -> str:
        """Base URL for OpenAI's clients (``OPENAI_BASE_URL``)."""
        return f"{self.url}/v1"

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that make the usual clients use the proxy. Keys are placeholders."""
        return {
            "OPENAI_BASE_URL": self.openai_url,
            "OPENAI_API_BASE": self.openai_url,
            "OPENAI_API_KEY": "captured",
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": "captured",
        }

    def check(self) -> None:
        """Raise the error that refuses further requests, if there is one."""
        if self.refused is None and self._budget is not None:
            try:
                self._budget.check()
            except AEnvError as error:
                self.refused = error
        if self.refused is not None:
            raise self.refused

    async def admitted(self, body: bytes) -> int:
        """Wait while requests that are under way may use up the budget. Returns the tokens to reserve.

        Raises:
            AEnvError: the budget is spent, or nothing can be recorded.
        """
        self.check()
        if self._budget is None:
            return 0
        reserved = _at_most(body) if self._budget.limits.tokens is not None else 0
        while self._open and not self._has_room(self._budget, reserved):
            await self._recorded.wait()
            self.check()
        return reserved

    def _has_room(self, budget: Budget, tokens: int) -> bool:
        """Return whether a further request fits beside those under way. What they cost is known from earlier ones."""
        cost = (self._open + 1) * self._dearest if self._dearest else float("inf")
        return budget.has_room(self._reserved + tokens, cost)

    async def settled(self) -> None:
        """Wait until all exchanges are recorded."""
        await self._settled.wait()

    def began(self, reserved: int) -> None:
        """Count an exchange that will be recorded."""
        self.requests += 1
        self._open += 1
        self._reserved += reserved
        self._settled.clear()

    def record(self, exchange: CapturedExchange) -> None:
        """Record a finished exchange. Never raises: the agent has its response already."""
        try:
            self._record(exchange)
            self._note_failure(exchange)
        except AEnvError as error:
            log.error("a model request could not be recorded: %s", error.message)
            self.refused = error  # what cannot be recorded must not go on
        except Exception:
            log.exception("a model request could not be read")
            self._record_unread(exchange)
        finally:
            self._open -= 1
            self._reserved -= exchange.reserved
            self._recorded.set()  # wakes all that wait now
            self._recorded.clear()
            if not self._open:
                self._settled.set()

    def _record(self, exchange: CapturedExchange) -> None:
        if exchange.wire is None:
            self._record_usage(exchange)
            return
        request = exchange.request_object()
        messages = [recorded(each) for each in exchange.wire.messages(request)]
        placed = self._conversations.place(messages, request.get("previous_response_id"))
        for message in messages[placed.known :]:
            self._append("message", thread=placed.thread, **message)
        about = _about(exchange, request, placed.thread, len(messages))
        reply = exchange.reply()
        if reply is None:
            text = f"the model's server answered with HTTP status {exchange.status}"
            self._append("note", text=text, data={**about, "body": exchange.text()[:NOTED]})
            if exchange.status == 200:  # it makes no sense, or the agent has not read all of it
                self._count(exchange.usage())
            return
        reply.seconds = round(exchange.seconds, 6)
        if not reply.input_tokens and not reply.output_tokens:
            reply.input_tokens = len(exchange.body) // CHARACTERS_PER_TOKEN
            said = exchange.left_out + len(json.dumps(reply.message))
            reply.output_tokens = len(reply.token_ids or ()) or said // CHARACTERS_PER_TOKEN
            about["usage_estimated"] = True
        self._conversations.replied(placed.thread, reply.message, exchange.response_id())
        optional = {
            "model": reply.model,
            "finish_reason": reply.finish_reason,
            "prompt_token_ids": reply.prompt_token_ids,
            "token_ids": reply.token_ids,
            "logprobs": reply.logprobs,
            "cut": not exchange.complete or bool(exchange.left_out) or None,
            "stream" if exchange.is_stream else "response": exchange.text() if exchange.is_stream else exchange.parsed,
        }
        self._append(
            "message",
            **recorded(reply.message, default_role="assistant"),
            usage={"input_tokens": reply.input_tokens, "output_tokens": reply.output_tokens},
            seconds=reply.seconds,
            **about,
            **{name: value for name, value in optional.items() if value is not None},
        )
        self._count(reply)

    def _record_unread(self, exchange: CapturedExchange) -> None:
        """Record an exchange that makes no sense as text. An agent must not end its episode with one."""
        data = {
            "status": exchange.status,
            "request": exchange.body.decode("utf-8", "replace"),
            "response": exchange.text(),
        }
        try:
            self._append("note", text=f"a request to {exchange.path} that could not be read", data=data)
            if exchange.status == 200:
                self._count(exchange.usage())
        except Exception as error:
            log.exception("a model request could not be recorded")
            message = f"a model request could not be recorded: {error}"
            self.refused = error if isinstance(error, AEnvError) else AEnvError(message)

    def _record_usage(self, exchange: CapturedExchange) -> None:
        """Record an exchange whose messages are not recorded."""
        used = exchange.usage()
        usage = {"input_tokens": used.input_tokens, "output_tokens": used.output_tokens}
        text = f"a request to {exchange.path}, whose messages are not recorded"
        self._append("note", text=text, data={"status": exchange.status, "usage": usage})
        if exchange.status == 200:
            self._count(used)

    def _note_failure(self, exchange: CapturedExchange) -> None:
        """Remember whether the model fails. What the agent causes is no failure of the model.

        Until a request was answered, no model has a say in what the agent does. From then on, requests to other APIs
        or models than those that answer may be made in order to fail.
        """
        if exchange.status == 200:
            self._answered.add(exchange.target)
            self.failed_status = None
        elif exchange.abandoned or (self._answered and exchange.target not in self._answered):
            self.failed_status = None
        else:
            self.failed_status = exchange.status

    @property
    def answered(self) -> bool:
        """True if the model has answered a request."""
        return bool(self._answered)

    def _count(self, reply: Reply) -> None:
        self._on_reply(reply)
        self._dearest = max(self._dearest, reply.cost)

    def _append(self, kind: str, /, **fields: Any) -> None:
        if self._sink is not None:
            self._sink.append(kind, **fields)


class CapturedExchange:
    """Request and its response, as they pass through the proxy."""

    def __init__(self, session: CaptureSession, path: str, wire: Wire | None, body: bytes, reserved: int = 0) -> None:
        """``wire``: None if only the usage is recorded. ``reserved``: tokens, as `CaptureSession.admitted` says."""
        self.session, self.path, self.wire, self.body, self.reserved = session, path, wire, body, reserved
        self.status = 0
        self.is_stream = False
        self.complete = False
        self.abandoned = False
        """True if the agent left before the response began."""
        self.seconds = 0.0
        self.first_byte_seconds = 0.0
        self.size = 0
        """Bytes of the response so far."""
        self._kept = 0
        self._content_type = b""
        self._began = time.perf_counter()
        self._parts: list[bytes] = []
        session.began(reserved)

    def started(self, status: int, content_type: bytes) -> None:
        """Take the head of the response."""
        self.status = status
        self._content_type = content_type
        self.is_stream = content_type.startswith(b"text/event-stream")

    def data(self, data: bytes) -> None:
        """Take bytes of the response."""
        if not self.size:
            self.first_byte_seconds = time.perf_counter() - self._began
        self.size += len(data)
        if self._kept < MAX_KEPT:
            self._parts.append(data[: MAX_KEPT - self._kept])
            self._kept += len(self._parts[-1])

    @property
    def left_out(self) -> int:
        """Bytes of the response that were not kept."""
        return self.size - self._kept

    def end(self, complete: bool) -> None:
        """Record the exchange, once what was received is on its way to the agent."""
        self.complete = complete
        self.seconds = time.perf_counter() - self._began
        asyncio.get_running_loop().call_soon(self.session.record, self)

    def abandon(self) -> None:
        """Record an exchange whose response the agent did not wait for."""
        self.abandoned = True
        self.failed(502, "the agent has not waited for the answer")

    def failed(self, status: int, body: str | bytes) -> None:
        """Record an exchange that is over: with an error of the server, or without any response."""
        self.started(status, b"")
        self.data(body.encode() if isinstance(body, str) else body)
        self.end(False)

    def text(self) -> str:
        """Return the body of the response as text."""
        return b"".join(self._parts).decode("utf-8", "replace")

    def request_object(self) -> dict[str, Any]:
        """Return the request; empty if it is no JSON object."""
        return _object(self.body)

    @property
    def target(self) -> tuple[str, str]:
        """Path and model of the request."""
        return self.path, str(self.request_object().get("model", ""))

    @property
    def parsed(self) -> dict[str, Any]:
        """The response; empty if it is no JSON object."""
        return _object(b"".join(self._parts))

    def response_id(self) -> str | None:
        """Return the identifier by which a later request continues this one (`previous_response_id`)."""
        if not self.is_stream:
            return self.parsed.get("id")
        _, found, rest = self.text().partition('"id":')
        return rest.lstrip().removeprefix('"').partition('"')[0] if found else None

    def usage(self) -> Reply:
        """Return a reply without a message that has the reported or else the estimated number of tokens."""
        data = b"".join(self._parts)
        said = events_of(data, cut_off=True) if self.is_stream else [_object(data)]
        found = [usage for each in said if isinstance(usage := each.get("usage"), dict)]
        read, written = (_number(found[-1], name) if found else 0 for name in ("prompt_tokens", "completion_tokens"))
        if not read and not written:
            read, written = len(self.body) // CHARACTERS_PER_TOKEN, self.size // CHARACTERS_PER_TOKEN
        return Reply({"role": "assistant", "content": None}, read, written)

    def reply(self) -> Reply | None:
        """Return what the response says; None if it is an error or makes no sense."""
        if self.status != 200 or self.wire is None:
            return None
        try:
            return self.wire.parse(b"".join(self._parts), self._content_type, cut_off=True)
        except InvalidAnswer as error:
            log.debug("a response could not be read: %s", error)
            return None


def _at_most(body: bytes) -> int:
    """Return how many tokens a request uses at most, as far as it says."""
    request = _object(body)
    limits = (_number(request, name) for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"))
    answers = max(1, _number(request, "n"), _number(request, "best_of"))
    return len(body) // CHARACTERS_PER_TOKEN + answers * (max(limits) or RESERVED)


def _number(values: Mapping[str, Any], name: str) -> int:
    value = values.get(name)
    return value if isinstance(value, int) and value > 0 else 0


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _about(exchange: CapturedExchange, request: dict[str, Any], thread: int, messages: int) -> dict[str, Any]:
    """Return what a record says about an exchange, besides its messages."""
    assert exchange.wire is not None
    about: dict[str, Any] = {
        "thread": thread,
        "api": exchange.wire.path.removeprefix("/v1").removeprefix("/"),
        "request": {name: value for name, value in request.items() if name not in _MESSAGES},
        "messages": messages,
        "first_byte_seconds": round(exchange.first_byte_seconds, 6),
    }
    if exchange.is_stream:
        about["first_token_seconds"] = about["first_byte_seconds"]
    if exchange.left_out:
        about["bytes"], about["bytes_left_out"] = exchange.size, exchange.left_out
    return about
