"""Messages to a zygote: its specification, and requests for sandboxes."""

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
"""New namespaces of each sandbox. The process namespace comes with the fork, that of control groups later."""


@dataclass(frozen=True, slots=True)
class ZygoteSpec:
    """Specification of a zygote: the functions that it runs, and the files that its sandboxes see."""

    entry: str
    """``module:function`` that a sandbox runs. Arguments: the socket to listen on, parameters, a function to report
    with."""
    prepare: str
    """``module:function`` that a preloaded parent runs. Arguments: parameters, a function to report with. Returns an
    object with ``serve``, which takes a function that forks, and ``reads``; None after reporting an error."""
    warm: str
    """``module:function`` that the zygote runs once, to import and use everything."""
    program: str
    """The module of a sandbox that is a new program. Arguments: descriptors of the socket to listen on, the status pipe
    and the parameters, and a JSON list of folders to import from."""
    rehearse: str
    """``module:function`` that a pre-forked sandbox runs, to do once what it will do for a request."""
    shown: list[str] = field(default_factory=list)
    """Further folders of the host for sandboxes to see and import from."""
    project: str | None = None
    """A folder that each sandbox sees at /app, with changes of its own."""
    user: int | None = None
    """User id of the host to become, when started by root. None: a free one, see `host_users.claim`."""
    host_network: bool = False
    """Leave sandboxes in the host's network."""
    files: list[str] | None = None
    """Files and folders of the project to show. None: all."""
    base: str | None = None
    """A root file system in place of the host's."""
    volume: Volume | None = None
    """A folder of the host that outlives the sandboxes of this zygote. One of them has it mounted at a time."""
    disk: int | None = None
    """Size of a layer on disk for the files of its only sandbox. None: the files of each sandbox are in memory."""
    plain: bool = False
    """Use no private parts of CPython; see `cpython_internals`."""

    @classmethod
    def read(cls, text: bytes) -> ZygoteSpec:
        """Parse the JSON of a specification."""
        fields = json.loads(text)
        volume = Volume(**fields["volume"]) if fields["volume"] else None
        return cls(**{**fields, "volume": volume})

    @property
    def fresh(self) -> int:
        """Flags of the new namespaces of each sandbox."""
        return FRESH & ~linux.CLONE_NEWNET if self.host_network else FRESH


@dataclass(frozen=True, slots=True)
class Spawn:
    """A request for a sandbox, a preloaded parent or a zygote."""

    id: str
    limits: Limits = field(default_factory=Limits)
    op: str = "spawn"
    """``spawn``: a sandbox that loads its code itself. ``prepare``: a preloaded parent. ``branch``: a fork of that.
    ``multiply``: a zygote like this one. ``fork``: a fork of a forkable instance or of a checkpoint. ``checkpoint``: a
    fork that stays stopped."""
    network: policy.Mode = "loopback"
    fork: bool = True
    """For ``spawn``: go on as a fork of the zygote. False: execute a new program."""
    forkable: bool = False
    """For ``prepare``: forks of the parent can be forked themselves while they run."""
    source: str = ""
    """For ``fork`` and ``checkpoint``: id of the instance or checkpoint to fork."""


def spawn_message(spawn: Spawn) -> bytes:
    """Encode a request. Descriptors go with it: listener, status, log, parameters, egress channel if any, cgroups."""
    message = {
        "id": spawn.id,
        "limits": _limits(spawn.limits),
        "op": spawn.op,
        "network": spawn.network,
        "fork": spawn.fork,
        "forkable": spawn.forkable,
        "source": spawn.source,
    }
    return json.dumps(message).encode()


@lru_cache(maxsize=64)
def _limits(limits: Limits) -> dict[str, Any]:
    return asdict(limits)


def parameters_file(parameters: dict[str, Any]) -> int:
    """Return a memory file with the parameters of a sandbox. The zygote, which it is forked from, does not read it."""
    fd = os.memfd_create("parameters", os.MFD_CLOEXEC)
    data, written = json.dumps(parameters).encode(), 0
    try:
        while written < len(data):  # `pwrite` leaves the position at the beginning, where the sandbox reads from
            written += os.pwrite(fd, data[written:], written)
    except BaseException:
        os.close(fd)
        raise
    return fd
