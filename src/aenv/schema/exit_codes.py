"""Exit codes shared by a sandbox's runtime and the platform."""

STOPPED_BY_SIGNAL = 143
"""Exit code of a runtime that stopped after SIGTERM or SIGINT inside its sandbox.

The platform stops runtimes with the same signals, and ignores the exit code then.
"""
