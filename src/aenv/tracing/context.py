"""Where in a trace we are, as W3C's ``traceparent`` header says it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

HEADER = b"traceparent"
TIMING = b"server-timing"
_FORM = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-[ -~]{0,200})?")


class SpanContext(NamedTuple):
    """A span, as what comes below it knows it."""

    trace_id: str
    span_id: str
    sampled: bool = True

    @classmethod
    def parse(cls, header: bytes) -> SpanContext | None:
        """None for what is no ``traceparent``: the trace then begins here."""
        match = _FORM.fullmatch(header)
        if match is None:
            return None
        return cls(match[1].decode(), match[2].decode(), bool(int(match[3], 16) & 1))

    @property
    def header(self) -> bytes:
        """As it is sent."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}".encode()


current: ContextVar[SpanContext | None] = ContextVar("aenv_trace", default=None)
"""What requests that are sent from here say that they belong to."""


@contextmanager
def within(place: SpanContext | None) -> Iterator[None]:
    """Send requests as a part of that."""
    token = current.set(place)
    try:
        yield
    finally:
        current.reset(token)
