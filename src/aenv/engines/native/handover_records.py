"""Handover records: what the next server needs to find a zygote or a sandbox again, beside its descriptors.

They are held in memory files by the fd holder, and never written to a disk: they contain variables and tokens. The
record of a sandbox is in the file of its log.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, Self

from pydantic import BaseModel, ConfigDict

from aenv.engines.base import SandboxSpec

ZYGOTE, SANDBOX = "zygote/", "logged/"
"""Prefixes of the names that descriptors are held under."""
SANDBOX_WITH_FILE = "sandbox/"
"""Prefix of sandboxes of servers up to 0.3.0, whose record is in a file of its own, before the log."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)

    def file(self) -> BinaryIO:
        """Return a memory file that contains the record."""
        file = os.fdopen(os.memfd_create("record", os.MFD_CLOEXEC), "w+b")
        file.write(self.model_dump_json().encode())
        file.flush()
        return file

    @classmethod
    def read(cls, fd: int) -> Self:
        """Read a record from such a file, and close it.

        Raises:
            ValueError: the record is of another version.
        """
        with open(fd, "rb") as file:
            file.seek(0)
            return cls.model_validate_json(file.read())


class ZygoteRecord(_Record):
    """Record of a zygote. Its control socket is held with it."""

    name: str
    spec: SandboxSpec
    origin: str | None
    """Name of the zygote that it was forked from."""


class SandboxRecord(_Record):
    """Record of a sandbox. Held with it: its log, then the pipe for its output and its egress listener, if it has
    these, in any order.
    """

    id: str
    zygote: str
    spec: SandboxSpec
    path: Path
    groups: list[Path]
    cpu_before: int = 0
    """CPU time of earlier sandboxes in the same control group; see `Cgroup`."""
    token: str
    healthy: bool
    note: str
    """The note that `Engine.keep` was given."""
