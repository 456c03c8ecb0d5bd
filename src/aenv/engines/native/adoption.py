"""Take over the zygotes and sandboxes of the previous server, from the descriptors that were held for this one."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from dataclasses import replace
from pathlib import Path

from aenv.engines.base import Exit
from aenv.engines.fd_holders import FdHolderClient
from aenv.engines.native.handover_records import SANDBOX, SANDBOX_WITH_FILE, ZYGOTE, SandboxRecord, ZygoteRecord
from aenv.engines.native.sandbox_handle import SandboxHandle
from aenv.engines.native.zygote_handle import ZygoteHandle
from aenv.engines.sandbox_log import Log
from aenv.errors import Unavailable
from aenv.isolation.limits.cgroups import Cgroup
from aenv.isolation.network.egress_process import EgressProcess
from aenv.tracing.logging import getLogger

log = getLogger("adoption")


class Adoption:
    """Builds handles of zygotes and sandboxes from held descriptors and their records."""

    def __init__(self, holder: FdHolderClient, folder: Path) -> None:
        self._holder = holder
        self._folder = folder
        self._controls: dict[str, tuple[ZygoteRecord, int]] = {}
        self._zygotes: dict[str, ZygoteHandle] = {}
        self.sandboxes: list[SandboxHandle] = []
        self.notes: dict[str, str] = {}
        """The note of each sandbox, by its id; see `Engine.keep`."""

    @property
    def zygotes(self) -> list[ZygoteHandle]:
        """Zygotes that are alive and have sandboxes."""
        return [zygote for zygote in self._zygotes.values() if zygote.alive]

    async def take_over(self, egress: EgressProcess) -> None:
        """Adopt all sandboxes that have a record; end all others, and their zygotes.

        A sandbox that ended while there was no server is adopted as one that has ended.
        """
        held, self._holder.held = self._holder.held, {}
        for name in sorted(held, reverse=True):  # zygotes first
            try:
                if name.startswith(ZYGOTE):
                    self._zygote(*held[name])
                elif name.startswith(SANDBOX):
                    sandbox_log = Log(held[name][0])
                    record = SandboxRecord.model_validate_json(sandbox_log.read_record())
                    await self._sandbox(egress, record, sandbox_log, held[name][1:])
                elif name.startswith(SANDBOX_WITH_FILE):
                    about, log_fd, *rest = held[name]
                    record = SandboxRecord.read(about)
                    adopted = await self._sandbox(egress, record, Log(log_fd), rest)
                    adopted.hold_with(self._holder, record.note)
                    self._holder.drop(name)
            except (ValueError, KeyError) as error:
                log.warning("%s cannot be adopted, and is ended: %s", name, error)
                self._holder.drop(name)
                for fd in held[name]:
                    with contextlib.suppress(OSError):
                        os.close(fd)
        # Those that were forked from another zygote first: that one must know which of them to keep.
        for name, zygote in sorted(self._zygotes.items(), key=lambda item: item[1].origin is None):
            await self._adopt(name, zygote)

    def _zygote(self, about: int, control: int) -> None:
        record = ZygoteRecord.read(about)
        self._controls[record.name] = (record, control)

    def _zygote_of(self, name: str) -> ZygoteHandle:
        if name not in self._zygotes:
            record = self._controls[name][0]
            origin = self._zygote_of(record.origin) if record.origin else None
            self._zygotes[name] = ZygoteHandle(record.spec, self._folder, self._holder, origin)
        return self._zygotes[name]

    async def _sandbox(self, egress: EgressProcess, record: SandboxRecord, log: Log, fds: list[int]) -> SandboxHandle:
        zygote = self._zygote_of(record.zygote)
        group = Cgroup(record.groups, record.cpu_before) if record.groups else None
        sandbox = SandboxHandle(record.id, record.spec, record.path, zygote, group, record.token, log)
        sandbox.ref = replace(sandbox.ref, healthy=record.healthy)
        zygote.sandboxes[record.id] = sandbox
        self.sandboxes.append(sandbox)
        self.notes[record.id] = record.note
        for fd in fds:
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                sandbox.read_log_from(fd)
            else:
                sandbox.egress = await egress.adopt(record.id, record.spec.network.allow, fd)
        return sandbox

    async def _adopt(self, name: str, zygote: ZygoteHandle) -> None:
        control = socket.socket(fileno=self._controls.pop(name)[1])
        try:
            there = await zygote.adopt(name, control, self._holder.process(name))
        except Unavailable as error:
            log.warning("%s", error.message)
            await zygote.end()
            return
        for lost in [sandbox for sandbox in zygote.sandboxes.values() if sandbox.id not in there]:
            del zygote.sandboxes[lost.id]
            lost.ended(Exit(-1, "it ended while there was no server"))

    def tidy(self) -> set[Path]:
        """Remove sockets and logs without a sandbox; return the control groups that are in use."""
        for name, (_, control) in self._controls.items():  # those without any sandbox
            os.close(control)
            self._holder.drop(f"{ZYGOTE}{name}")
        known = {sandbox.path for sandbox in self.sandboxes} | {zygote.log for zygote in self.zygotes}
        for path in self._folder.iterdir():
            if path not in known:
                path.unlink(missing_ok=True)
        return {path for sandbox in self.sandboxes if sandbox.group for path in sandbox.group.paths}
