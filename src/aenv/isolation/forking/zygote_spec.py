"""What a zygote is told, and in which words."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

from aenv.isolation.files.volumes import Volume
from aenv.isolation.kernel import linux
from aenv.isolation.limits.cgroups import Limits
from aenv.isolation.network import policy

MESSAGE = 1 << 20
MAX_FDS = 16
FRESH = linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS
"""Namespaces of its own for each sandbox; that of processes comes with the fork, that of control groups later."""


@dataclass(frozen=True, slots=True)
class ZygoteSpec:
    """What to have ready, and what sandboxes get to see."""

    entry: str
    """``module:function`` that a sandbox runs: it takes what to listen on, what it is told, and what to report with."""
    prepare: str
    """``module:function`` that loads code for others to begin with: it takes what it is told and what to report with.
    It returns something with ``serve``, which takes what forks, and ``reads``, or nothing after reporting why not."""
    warm: str
    """``module:function`` that the zygote runs once, to have everything imported and used."""
    program: str
    """The module that does the same as a program of its own. Its arguments are descriptors, of what to listen on, to
    report to and to be told by, and a JSON list of folders to import from."""
    rehearse: str
    """``module:function`` that a sandbox runs which nobody has asked for yet, to have done once what it will do."""
    shown: list[str] = field(default_factory=list)
    """Further folders to show, and for sandboxes to import from."""
    project: str | None = None
    """A folder that each sandbox sees at /app and may change for itself."""
    user: int | None = None
    """The host's user to become, when started by root. None: one that no other has, see `users.claim`."""
    host_network: bool = False
    """Leave sandboxes in the host's network."""
    files: list[str] | None = None
    """Only these of the project's files, or folders. None: all."""
    base: str | None = None
    """A root file system to have in place of the host's."""
    volume: Volume | None = None
    """A folder of the host that all sandboxes share, and that outlives them."""
    plain: bool = False
    """Use no private parts of CPython; see `cpython_internals`."""

    @classmethod
    def read(cls, text: bytes) -> ZygoteSpec:
        """What was written as JSON."""
        told = json.loads(text)
        volume = Volume(**told["volume"]) if told["volume"] else None
        return cls(**{**told, "volume": volume})

    @property
    def fresh(self) -> int:
        """The namespaces that each sandbox has for itself."""
        return FRESH & ~linux.CLONE_NEWNET if self.host_network else FRESH


@dataclass(frozen=True, slots=True)
class Spawn:
    """One sandbox to make."""

    id: str
    limits: Limits = field(default_factory=Limits)
    op: str = "spawn"
    """``spawn`` a sandbox that loads its code itself, ``prepare`` a preloaded parent, ``branch`` off from that;
    ``multiply``: make a zygote like this one."""
    network: policy.Mode = "loopback"
    fork: bool = True
    """For ``spawn``: whether to go on as a fork of the zygote, and not as a new program."""


def spawn_message(spawn: Spawn) -> bytes:
    """As the zygote reads it. With it go descriptors: see `_Sandbox`; that of an ``egress`` channel comes fifth."""
    message = {
        "id": spawn.id,
        "limits": _told(spawn.limits),
        "op": spawn.op,
        "network": spawn.network,
        "fork": spawn.fork,
    }
    return json.dumps(message).encode()


@lru_cache(maxsize=64)
def _told(limits: Limits) -> dict[str, Any]:
    return asdict(limits)


def parameters_file(parameters: dict[str, Any]) -> int:
    """A descriptor that only the sandbox reads, and not the zygote that it is forked from."""
    fd = os.memfd_create("parameters", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(json.dumps(parameters).encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
