"""For authors of environments: run one in a test as it will run in a sandbox."""

from aenv.testing.servers import Server, running

__all__ = ["Server", "running"]
