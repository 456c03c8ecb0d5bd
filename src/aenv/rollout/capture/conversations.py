"""Conversations of one session: which messages of a request are new.

An agent sends its whole conversation with every request. Recording each message once needs to know which were there
before. An agent with subagents has several conversations at the same time, so each request belongs to the one that
shares the longest beginning with it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MAX_THREADS = 256
"""Conversations that are remembered. Of an older one, all messages count as new."""


class Placed(NamedTuple):
    """Place of a request in the session."""

    thread: int
    """Number of the conversation, from 0."""
    known: int
    """Number of leading messages that were recorded before."""


class Conversations:
    """The conversations of one session."""

    def __init__(self) -> None:
        self._threads: dict[int, list[bytes]] = {}
        self._responses: dict[str, int] = {}
        self._next = 0

    def place(self, messages: Sequence[Mapping[str, Any]], previous: object = None) -> Placed:
        """Place a request, and remember its messages. ``previous``: id of the response that it continues."""
        digests = [_digest(message) for message in messages]
        if isinstance(previous, str) and previous in self._responses:  # the server has the earlier messages
            return Placed(self._responses[previous], 0)
        thread, known = -1, 0
        for number, there in self._threads.items():
            shared = _shared(there, digests)
            if shared > known and shared == len(there):
                thread, known = number, shared
        if thread < 0:
            thread, self._next = self._next, self._next + 1
            if len(self._threads) >= MAX_THREADS:
                del self._threads[next(iter(self._threads))]
        self._threads[thread] = digests
        return Placed(thread, known)

    def replied(self, thread: int, message: Mapping[str, Any], response: str | None) -> None:
        """Remember the reply: the next request of the conversation will contain it."""
        self._threads.setdefault(thread, []).append(_digest(message))
        if response:
            if len(self._responses) >= MAX_THREADS:
                del self._responses[next(iter(self._responses))]
            self._responses[response] = thread


def _shared(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def _digest(message: Mapping[str, Any]) -> bytes:
    """Digest what a message says. Agents leave out or add empty fields when they send a reply back."""
    calls = [
        (call.get("id"), (call.get("function") or {}).get("name"), (call.get("function") or {}).get("arguments"))
        for call in message.get("tool_calls") or ()
        if isinstance(call, dict)
    ]
    said = [message.get("role"), _plain(message.get("content")), calls, message.get("tool_call_id")]
    return hashlib.blake2b(json.dumps(said, sort_keys=True, default=str).encode(), digest_size=16).digest()


def _plain(content: Any) -> Any:
    """Return text parts as one text, since a text and a list with one text part are the same."""
    if isinstance(content, list) and all(isinstance(part, dict) and "text" in part for part in content):
        return "".join(str(part["text"]) for part in content)
    return content or None
