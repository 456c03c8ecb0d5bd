"""Exit codes that one side of a sandbox gives and the other reads."""

STOPPED_BY_SIGNAL = 143
"""Of a runtime that has stopped for SIGTERM or SIGINT in a sandbox. The platform, which stops one in the same way, does
not ask how that ended."""
