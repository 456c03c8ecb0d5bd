"""Trace context, in the format of W3C's ``traceparent`` header."""

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
    """Identity of a span, as its children need it."""

    trace_id: str
    span_id: str
    sampled: bool = True

    @classmethod
    def parse(cls, header: bytes) -> SpanContext | None:
        """Parse a ``traceparent`` header; None if it is invalid, so that a new trace begins."""
        match = _FORM.fullmatch(header)
        if match is None:
            return None
        return cls(match[1].decode(), match[2].decode(), bool(int(match[3], 16) & 1))

    @property
    def header(self) -> bytes:
        """Return the ``traceparent`` header."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}".encode()


current: ContextVar[SpanContext | None] = ContextVar("aenv_trace", default=None)
"""Parent span of the requests that are sent in this context."""


@contextmanager
def within(parent: SpanContext | None) -> Iterator[None]:
    """Use a span as the parent of requests that the block sends."""
    token = current.set(parent)
    try:
        yield
    finally:
        current.reset(token)
