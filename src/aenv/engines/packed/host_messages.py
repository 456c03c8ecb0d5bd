"""Messages between a platform and the server in a host pod."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from aenv.engines.base import SandboxSpec
from aenv.engines.exits import Cause, Exit

PROJECTS, SANDBOXES, CHANGES = "/projects", "/sandboxes", "/changes"
WAIT_SECONDS = 20.0
"""How long the host waits for something to change before it answers a request for changes."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")  # the two sides may be of different versions for a while


class StartSandbox(_Message):
    """A request for a sandbox. Repeating it, with the same name, makes no second one."""

    name: str
    project: str
    """Digest of the project's archive."""
    code: str
    """The code, as a path relative to the project."""
    spec: SandboxSpec


class StartedSandbox(_Message):
    """A sandbox that answers at a port of the host."""

    port: int
    token: str = Field(repr=False)
    healthy: bool = False
    isolation: str = ""


class EndedSandbox(_Message):
    """A sandbox that has ended without being stopped."""

    name: str
    code: int
    reason: str
    cause: Cause

    @property
    def exit(self) -> Exit:
        """How it ended, as the engine knows it."""
        return Exit(self.code, self.reason, self.cause)


class HostChanges(_Message):
    """Changes on a host after a position, and the room that it has."""

    position: int
    ended: list[EndedSandbox] = []
    sandboxes: int = 0
    memory: int = 0
    """Bytes that the host pod uses, without the page cache; 0: unknown."""
    memory_limit: int = 0
    """Memory limit of the host pod in bytes; 0: none."""
    draining: bool = False
    """True once the host takes no more sandboxes; it ends when those that it has are gone."""
