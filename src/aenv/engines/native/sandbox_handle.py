"""A sandbox, as the engine sees it from outside: its address, log, limits and end."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aenv.client.instance_client import InstanceClient
from aenv.engines.base import Exit, SandboxRef, SandboxSpec
from aenv.engines.fd_holders import Holder
from aenv.engines.native.handover_records import SANDBOX, SandboxRecord
from aenv.engines.sandbox_log import Log
from aenv.http import unix_sockets
from aenv.http.url import ServerUrl
from aenv.isolation.files import custom_rootfs
from aenv.isolation.files.rootfs import PROJECT, SNAPSHOT
from aenv.isolation.limits import process_usage
from aenv.isolation.limits.cgroups import Cgroup
from aenv.isolation.network.egress_process import EgressEndpoint
from aenv.schema import paths

if TYPE_CHECKING:
    from aenv.engines.native.zygote_handle import ZygoteHandle


@lru_cache(maxsize=256)
def _shown_path(code: str, project: str) -> str:
    """Return where a sandbox sees the code. Cached: this takes longer than all other parameters."""
    return str(Path(PROJECT) / Path(code).relative_to(project))


BACKLOG = 512
VARIABLES_SECONDS = 5.0
"""For a pooled sandbox to take its variables. After that another sandbox is made."""


class SandboxHandle:
    """A sandbox or a preloaded parent: a process that a zygote forked."""

    def __init__(
        self, name: str, spec: SandboxSpec, path: Path, zygote: ZygoteHandle, group: Cgroup | None,
        token: str = "", log: Log | None = None, host: str = "",
    ) -> None:  # fmt: skip
        """``host``: address to accept calls at over TCP. Empty: they are accepted at the unix socket ``path``."""
        self.id = name
        self.spec = spec
        self.ref = SandboxRef(name, f"unix:{path}", token or secrets.token_urlsafe(24))
        self.path = path
        self._host = host
        self.zygote = zygote
        self.group = group
        self.pooled = False
        """Made for the pool: it does more before it answers, so that its first call is fast."""
        self.fork_of = ""
        """Id of the instance or checkpoint that it is a live fork of."""
        self.checkpoint = False
        """Stopped for good: it can only be forked."""
        self.forking = asyncio.Lock()
        """Held while it is forked."""
        self.requested = asyncio.Event()
        """Set once the zygote was sent the request for it, or that has failed."""
        self.packages_only = False
        """For a preloaded parent: import the project's packages and not its code."""
        self.reads: frozenset[str] | None = None
        """For a preloaded parent: the variables that its import read; None: maybe all of them."""
        self.process: int | None = None
        """Process id of its first process on the host, once `usage` has found it."""
        self.exit: Exit | None = None
        self.stopped = False
        """True once the zygote was told to kill it."""
        self.gone = asyncio.Event()
        self.egress: EgressEndpoint | None = None
        self.log = log or Log()
        self._pipe = -1
        """Read end of the pipe for its stdout and stderr; -1 when closed."""
        self._held: list[int] = []
        """The descriptors that the holder was given."""

    def listen(self) -> socket.socket:
        """Return the bound socket at which the runtime will accept calls, and note its address."""
        if not self._host:
            listener = unix_sockets.bind_path(str(self.path))
            listener.listen(BACKLOG)
            return listener
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.create_server((self._host, 0), family=family, backlog=BACKLOG)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted connections inherit it
        shown = f"[{self._host}]" if ":" in self._host else self._host
        self.ref = replace(self.ref, data_url=f"http://{shown}:{listener.getsockname()[1]}")
        return listener

    def parameters(self) -> dict[str, Any]:
        """Return the parameters for the runtime inside."""
        spec = self.spec
        return {
            "path": _shown_path(str(spec.code), str(spec.project)),
            "directory": PROJECT,
            "snapshot": SNAPSHOT if spec.base is None else custom_rootfs.SNAPSHOT,
            "name": spec.name,
            "token": self.ref.token,
            "variables": {**spec.network.variables, **spec.variables},
            "arguments": spec.arguments,
            "pooled": self.pooled,
            "packages": self.zygote.packages,
            "packages_only": self.packages_only,
            "plain": self.zygote.plain,
            "forkable": spec.forkable,
        }

    async def send_variables(self, spec: SandboxSpec) -> None:
        """Give a pooled sandbox, which was made without variables, those of a request.

        Raises:
            AEnvError: it cannot be reached, or does not answer in time.
        """
        client = InstanceClient(ServerUrl.parse(self.ref.data_url), token=self.ref.token, patience=0.0)
        try:
            await client.call(paths.SETTLE, spec.variables, timeout=VARIABLES_SECONDS)
        finally:
            client.close()
        self.spec = spec

    def usage(self) -> dict[str, Any]:
        """Return what its control group counts, and for the rest what its processes use."""
        used: dict[str, Any] = dict(self.group.usage()) if self.group else {}
        if "cpu_nanoseconds" in used:
            return used
        if self.group is not None:
            return {**process_usage.usage(process_usage.members(self.group.paths)), **used}
        if self.process is None:
            found = process_usage.listening_process(self.path)
            self.process = (
                found if found != os.getpid() else None
            )  # we made the socket; the sandbox does not listen yet
        return process_usage.usage(process_usage.tree(self.process)) if self.process is not None else {}

    @property
    def ran_out_of_memory(self) -> bool:
        """True if the kernel killed any of its processes at its memory limit, and it was not stopped."""
        return not self.stopped and self.group is not None and self.group.oom_kills() > 0

    @property
    def channels(self) -> list[int]:
        """Return the descriptor to send its egress listener through, if it has one."""
        return [self.egress.channel] if self.egress else []

    def hold_with(self, holder: Holder, note: str) -> None:
        """Give the holder, which outlives this process, all that the next server needs to find it again.

        The holder is told only if the descriptors are others than the last time.
        """
        record = SandboxRecord(
            id=self.id, zygote=self.zygote.name, spec=self.spec, path=self.path, note=note, token=self.ref.token,
            groups=self.group.paths if self.group else [], cpu_before=self.group.before if self.group else 0,
            healthy=self.ref.healthy,
        )  # fmt: skip
        self.log.write_record(record.model_dump_json().encode())
        fds = [fd for fd in (self.log.fd, self._pipe, self.egress.listener if self.egress else -1) if fd >= 0]
        if fds != self._held:
            holder.hold(f"{SANDBOX}{self.id}", fds, wait_for_next=True)
            self._held = fds

    def read_log_from(self, fd: int) -> None:
        """Copy everything that comes through a pipe into the log. The handle owns the descriptor."""
        self._pipe = fd
        asyncio.get_running_loop().add_reader(fd, self._read_log)

    def _read_log(self) -> bool:
        """Read once; return whether there may be more."""
        try:
            data = os.read(self._pipe, 65536)
        except BlockingIOError:
            return False
        if not data:
            self._close_pipe()
            return False
        self.log.append(data)
        return True

    def _close_pipe(self) -> None:
        if self._pipe >= 0:
            asyncio.get_running_loop().remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = -1

    def ended(self, how: Exit) -> None:
        """Note its end, after reading the rest of its log."""
        self.exit = how
        while self._pipe >= 0 and self._read_log():
            pass
        if self.egress is not None:
            self.egress.close()
        self.gone.set()

    def clean(self) -> None:
        """Remove its socket and log. Idempotent; the control group is the caller's to give back."""
        self._close_pipe()
        self.log.close()
        self.path.unlink(missing_ok=True)
