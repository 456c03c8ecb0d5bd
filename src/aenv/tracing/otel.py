"""Tracer that records spans with OpenTelemetry. Only this module imports it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from aenv._version import __version__
from aenv.tracing.context import SpanContext, current
from aenv.tracing.spans import Kind, Value

_KINDS = {"client": trace.SpanKind.CLIENT, "server": trace.SpanKind.SERVER, "internal": trace.SpanKind.INTERNAL}


class OtelSpan:
    """Span of OpenTelemetry."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self.context = _span_context(span)

    def set(self, **facts: Value) -> None:
        """Set attributes."""
        self._span.set_attributes({_dotted(name): value for name, value in facts.items()})

    def fail(self, why: str) -> None:
        """Mark the span as failed."""
        self._span.set_status(trace.StatusCode.ERROR, why)

    def end(self) -> None:
        """End the span."""
        self._span.end()


class OtelTracer:
    """Tracer on the program's own provider, if it has one, else on a provider that the OTEL_* variables configure."""

    def __init__(self, service: str) -> None:
        provider = trace.get_tracer_provider()
        if not isinstance(provider, TracerProvider):
            provider = _provider(service)
        self._tracer = provider.get_tracer("aenv", __version__)

    def start(self, name: str, kind: Kind, parent: SpanContext | None, facts: Mapping[str, Value]) -> OtelSpan:
        """Start a span."""
        if parent is None and self.own_span() is None:
            parent = current.get()
        attributes = {_dotted(key): value for key, value in facts.items()}
        context = _parent_context(parent) if parent is not None else None
        return OtelSpan(self._tracer.start_span(name, context, _KINDS[kind], attributes))

    def record(self, name: str, parent: SpanContext, began: int, ended: int) -> SpanContext:
        """Record a span that has ended."""
        span = self._tracer.start_span(name, _parent_context(parent), start_time=began)
        span.end(ended)
        return _span_context(span)

    def own_span(self) -> str | None:
        """Return the id of the program's current span."""
        context = trace.get_current_span().get_span_context()
        return f"{context.span_id:016x}" if context.is_valid else None


def _provider(service: str) -> TracerProvider:
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    provider = TracerProvider(resource=Resource.create({} if named else {"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _parent_context(parent: SpanContext) -> Context:
    flags = trace.TraceFlags(int(parent.sampled))
    context = trace.SpanContext(int(parent.trace_id, 16), int(parent.span_id, 16), is_remote=True, trace_flags=flags)
    return trace.set_span_in_context(trace.NonRecordingSpan(context))


def _span_context(span: trace.Span) -> SpanContext:
    context = span.get_span_context()
    return SpanContext(f"{context.trace_id:032x}", f"{context.span_id:016x}", context.trace_flags.sampled)


def _dotted(name: str) -> str:
    return name.replace("_", ".")
