"""Bound what a sandbox may use: control groups, resource limits, host users and per-user kernel counters."""
