"""Spans, for whoever does not care how they are recorded. There are none unless OpenTelemetry is configured."""

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
    """Something that takes a while."""

    place: SpanContext

    def set(self, **facts: Value) -> None:
        """Say more about it; in names, ``_`` stands for a dot."""

    def fail(self, why: str) -> None:
        """It did not work."""

    def end(self) -> None:
        """It is over."""


class Tracer(Protocol):
    """Records spans."""

    def start(self, name: str, kind: Kind, parent: SpanContext | None, facts: Mapping[str, Value]) -> Span:
        """A new one, below ``parent``, or below what this process is in the middle of."""

    def record(self, name: str, parent: SpanContext, began: int, ended: int) -> SpanContext:
        """One that is over; times in nanoseconds since 1970."""

    def own_span(self) -> str | None:
        """The id of the span that the program which uses us is in the middle of."""


tracer: Tracer | None = None
"""This process's; None: nothing is recorded."""
_missing = False


def begin(service: str) -> Tracer | None:
    """Record spans from now on, if this process is told to: by OTEL_* variables, or by its own OpenTelemetry SDK."""
    global tracer, _missing
    if tracer is not None or _missing or not _is_configured():
        return tracer
    try:
        from aenv.tracing.otel import OtelTracer
    except ImportError as error:
        _missing = True
        log.warning("traces are configured, but not recorded: %s; pip install 'aenvironment[otel]'", error)
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
    """A span for the length of the block, which what is sent from there belongs to. None where nothing is recorded."""
    if tracer is None:
        yield None
        return
    made = tracer.start(name, kind, parent, facts)
    try:
        with within(made.place):
            yield made
    except BaseException as error:
        made.fail(f"{type(error).__name__}: {error}")
        raise
    finally:
        made.end()


def reported(said: bytes, below: SpanContext, began: int, ended: int) -> None:
    """Record what an instance said of its own time, in the middle of the time for which we waited for it.

    It is somebody's code that speaks there, so nothing is believed that cannot be.
    """
    if tracer is None:
        return
    durations = {name: int(float(ms) * 1_000_000) for name, ms in _TIMING.findall(said.decode("latin-1")[:200])}
    for name in ("runtime", "tool"):
        duration = durations.get(name)
        if duration is None or duration > ended - began:
            return
        began += (ended - began - duration) // 2
        ended = began + duration
        below = tracer.record(name, below, began, ended)
