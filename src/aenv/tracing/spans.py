"""Spans, independent of how they are recorded. None are recorded unless OpenTelemetry is configured."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, Protocol

from aenv.tracing.context import SpanContext, within

log = logging.getLogger("aenv.tracing")

Kind = Literal["client", "server", "internal"]
Value = str | int | float | bool
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_TIMING = re.compile(r"(runtime|tool);dur=(\d{1,9}(?:\.\d{1,6})?)")


class Span(Protocol):
    """A timed operation."""

    context: SpanContext

    def set(self, **facts: Value) -> None:
        """Set attributes; in their names, ``_`` stands for a dot."""

    def fail(self, why: str) -> None:
        """Mark the span as failed."""

    def end(self) -> None:
        """End the span."""


class Tracer(Protocol):
    """Recorder of spans."""

    def start(self, name: str, kind: Kind, parent: SpanContext | None, facts: Mapping[str, Value]) -> Span:
        """Start a span below ``parent``, or below the current span of this process."""

    def record(self, name: str, parent: SpanContext, began: int, ended: int) -> SpanContext:
        """Record a span that has ended; times in nanoseconds since 1970."""

    def own_span(self) -> str | None:
        """Return the id of the program's current span."""


tracer: Tracer | None = None
"""Tracer of this process; None: nothing is recorded."""
_missing = False


def begin(service: str) -> Tracer | None:
    """Start to record spans if tracing is configured: by OTEL_* variables, or by the program's OpenTelemetry SDK."""
    global tracer, _missing
    if tracer is not None or _missing or not _is_configured():
        return tracer
    try:
        from aenv.tracing.otel import OtelTracer
    except ImportError as error:
        _missing = True
        log.warning("tracing is configured, but not installed: %s; pip install 'aenvironment[otel]'", error)
        return None
    tracer = OtelTracer(service)
    return tracer


def _is_configured() -> bool:
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return False
    return "opentelemetry.sdk.trace" in sys.modules or any(os.environ.get(name) for name in ENDPOINTS)


@contextmanager
def span(
    name: str, kind: Kind = "internal", parent: SpanContext | None = None, **facts: Value
) -> Iterator[Span | None]:
    """Record the block as a span, the parent of the requests it sends. Yields None where nothing is recorded."""
    if tracer is None:
        yield None
        return
    started = tracer.start(name, kind, parent, facts)
    try:
        with within(started.context):
            yield started
    except BaseException as error:
        started.fail(f"{type(error).__name__}: {error}")
        raise
    finally:
        started.end()


def record_reported(timing: bytes, parent: SpanContext, began: int, ended: int) -> None:
    """Record the durations that an instance reported, centered in the time that the caller waited.

    The report comes from untrusted code, so durations longer than the wait are dropped.
    """
    if tracer is None:
        return
    durations = {name: int(float(ms) * 1_000_000) for name, ms in _TIMING.findall(timing.decode("latin-1")[:200])}
    for name in ("runtime", "tool"):
        duration = durations.get(name)
        if duration is None or duration > ended - began:
            return
        began += (ended - began - duration) // 2
        ended = began + duration
        parent = tracer.record(name, parent, began, ended)
