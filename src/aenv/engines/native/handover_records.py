"""What is written down of a warm parent and of a sandbox, for the server that comes after this one to find them by.

It is held in memory, by a keeper, and never written to a disk: a sandbox's variables are in it, and its token.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, Self

from pydantic import BaseModel, ConfigDict

from aenv.engines.base import SandboxSpec

ZYGOTE, SANDBOX = "zygote/", "sandbox/"
"""What their names begin with where they are held."""


class _Book(BaseModel):
    model_config = ConfigDict(frozen=True)

    def file(self) -> BinaryIO:
        """A file without a place that has it written in it."""
        file = os.fdopen(os.memfd_create("book", os.MFD_CLOEXEC), "w+b")
        file.write(self.model_dump_json().encode())
        file.flush()
        return file

    @classmethod
    def read(cls, fd: int) -> Self:
        """What is written in such a file, which is then closed.

        Raises:
            ValueError: it is of another version.
        """
        with open(fd, "rb") as file:
            file.seek(0)
            return cls.model_validate_json(file.read())


class ZygoteRecord(_Book):
    """Of a warm parent. With it goes the descriptor of its control socket."""

    name: str
    spec: SandboxSpec
    origin: str | None
    """The name of the one that it was forked from."""


class SandboxRecord(_Book):
    """Of a sandbox. With it go descriptors of its log, and then of the pipe that it writes to and of its door to the
    network, if it has these.
    """

    id: str
    zygote: str
    spec: SandboxSpec
    path: Path
    groups: list[Path]
    cpu_before: int = 0
    """See `Cgroup`."""
    token: str
    healthy: bool
    logged: bool
    note: str
    """What the engine was given to remember."""
