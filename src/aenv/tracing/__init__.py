"""Traces: from the call in a trainer through the platform to the author's tool, under one trace id.

Where we are in a trace travels as W3C's ``traceparent`` header and costs a look at a context variable. Spans are made
only where OpenTelemetry is configured, and only `otel` imports it. A sandbox has neither network nor OpenTelemetry: it
says how long it took in the answer's ``server-timing``, and whoever asked makes the spans of that.
"""
