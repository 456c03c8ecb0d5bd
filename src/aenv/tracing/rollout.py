"""All that is done with one instance, from the wish for it to its end, as one span."""

from __future__ import annotations

from contextlib import AbstractContextManager

from aenv.tracing import spans
from aenv.tracing.context import SpanContext, within


class Rollout:
    """The span that an instance's calls are below."""

    def __init__(self, name: str, tracer: spans.Tracer) -> None:
        self._tracer = tracer
        self._around = tracer.own_span()
        self._span = tracer.start(f"environment {name}", "internal", None, {})

    @classmethod
    def begin(cls, name: str) -> Rollout | None:
        """None where nothing is recorded."""
        tracer = spans.begin("aenv-sdk")
        return cls(name, tracer) if tracer is not None else None

    def around(self) -> AbstractContextManager[None]:
        """What is sent in this block is a part of it."""
        return within(self._span.place)

    @property
    def parent(self) -> SpanContext | None:
        """What a call is below now: us, unless the program has begun a span of its own meanwhile."""
        return self._span.place if self._tracer.own_span() == self._around else None

    def about(self, instance: str) -> None:
        """It is this instance's."""
        self._span.set(aenv_instance=instance)

    def end(self) -> None:
        """It is over."""
        self._span.end()
