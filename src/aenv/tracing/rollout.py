"""The span of a rollout: everything done with one instance, from the create request to its end."""

from __future__ import annotations

from contextlib import AbstractContextManager

from aenv.tracing import spans
from aenv.tracing.context import SpanContext, within


class RolloutTrace:
    """Parent span of an instance's calls."""

    def __init__(self, name: str, tracer: spans.Tracer) -> None:
        self._tracer = tracer
        self._outer_span = tracer.own_span()
        self._span = tracer.start(f"environment {name}", "internal", None, {})

    @classmethod
    def begin(cls, name: str) -> RolloutTrace | None:
        """Start a rollout's span; None where nothing is recorded."""
        tracer = spans.begin("aenv-sdk")
        return cls(name, tracer) if tracer is not None else None

    def as_parent(self) -> AbstractContextManager[None]:
        """Make the requests of the block children of the rollout."""
        return within(self._span.context)

    @property
    def parent(self) -> SpanContext | None:
        """Return the parent of the next call: the rollout, or None if the program has started a span since."""
        return self._span.context if self._tracer.own_span() == self._outer_span else None

    @property
    def trace_id(self) -> str:
        """Return the id of the trace: 32 hexadecimal digits."""
        return self._span.context.trace_id

    def set_instance(self, instance: str) -> None:
        """Record the instance id."""
        self._span.set(aenv_instance=instance)

    def end(self) -> None:
        """End the rollout's span."""
        self._span.end()
