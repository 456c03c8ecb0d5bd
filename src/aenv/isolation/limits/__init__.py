"""Limits on a sandbox: control groups, resource limits, host users and per-user kernel counters."""
