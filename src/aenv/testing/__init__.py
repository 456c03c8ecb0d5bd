"""Test helpers for authors of environments: run an environment in a test as it runs in a sandbox."""

from aenv.testing.servers import Server, running

__all__ = ["Server", "running"]
