"""Distributed traces, from the trainer's call through the platform to the author's tool, under one trace id.

The trace context travels as W3C's ``traceparent`` header and costs one read of a context variable. Spans are recorded
only where OpenTelemetry is configured, and only `otel` imports it. A sandbox has neither network nor OpenTelemetry: it
reports its durations in the response's ``server-timing`` header, and the caller records them as spans.
"""
