"""How a server finds again what the server before it has left with a keeper."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import replace
from pathlib import Path

from aenv.engines.base import Exit
from aenv.engines.fd_holders import FdHolderClient
from aenv.engines.native.handover_records import SANDBOX, ZYGOTE, SandboxRecord, ZygoteRecord
from aenv.engines.native.sandbox_handle import SandboxHandle
from aenv.engines.native.zygote_handle import ZygoteHandle
from aenv.engines.sandbox_log import Log
from aenv.errors import Unavailable
from aenv.isolation.limits.cgroups import Cgroup
from aenv.isolation.network.egress_process import EgressProcess
from aenv.tracing.logging import getLogger

log = getLogger("adoption")


class Adoption:
    """Sandboxes and their warm parents, out of what a keeper held."""

    def __init__(self, keeper: FdHolderClient, folder: Path) -> None:
        self._keeper = keeper
        self._folder = folder
        self._controls: dict[str, tuple[ZygoteRecord, int]] = {}
        self._zygotes: dict[str, ZygoteHandle] = {}
        self.sandboxes: list[SandboxHandle] = []
        self.notes: dict[str, str] = {}
        """What was noted of each, by its id."""

    @property
    def zygotes(self) -> list[ZygoteHandle]:
        """That have sandboxes."""
        return [zygote for zygote in self._zygotes.values() if zygote.alive]

    async def take_over(self, egress: EgressProcess) -> None:
        """Go on with all sandboxes of which there is a note; end all others, and what only they needed.

        One that ended while nobody watched is among them, and says that it has ended.
        """
        held, self._keeper.held = self._keeper.held, {}
        for name in sorted(held, reverse=True):  # the parents first
            try:
                if name.startswith(ZYGOTE):
                    self._zygote(*held[name])
                elif name.startswith(SANDBOX):
                    await self._sandbox(egress, *held[name])
            except (ValueError, KeyError) as error:
                log.warning("%s cannot be taken over, and is ended: %s", name, error)
                self._keeper.drop(name)
                for fd in held[name]:
                    with contextlib.suppress(OSError):
                        os.close(fd)
        # Those that were forked from another first: that one is to know which of them to leave alone.
        for name, zygote in sorted(self._zygotes.items(), key=lambda item: item[1].origin is None):
            await self._go_on(name, zygote)

    def _zygote(self, about: int, control: int) -> None:
        book = ZygoteRecord.read(about)
        self._controls[book.name] = (book, control)

    def _zygote_of(self, name: str) -> ZygoteHandle:
        if name not in self._zygotes:
            book = self._controls[name][0]
            origin = self._zygote_of(book.origin) if book.origin else None
            self._zygotes[name] = ZygoteHandle(book.spec, self._folder, self._keeper, origin)
        return self._zygotes[name]

    async def _sandbox(self, egress: EgressProcess, about: int, log: int, *fds: int) -> None:
        book = SandboxRecord.read(about)
        zygote = self._zygote_of(book.zygote)
        group = Cgroup(book.groups, book.cpu_before) if book.groups else None
        sandbox = SandboxHandle(book.id, book.spec, book.path, zygote, group, book.token, Log(log))
        sandbox.ref = replace(sandbox.ref, healthy=book.healthy)
        zygote.sandboxes[book.id] = sandbox
        self.sandboxes.append(sandbox)
        self.notes[book.id] = book.note
        rest = list(fds)
        if book.logged:
            sandbox.read_log_from(rest.pop(0))
        if rest:
            sandbox.door = await egress.adopt(book.id, book.spec.network.allow, rest.pop())

    async def _go_on(self, name: str, zygote: ZygoteHandle) -> None:
        control = socket.socket(fileno=self._controls.pop(name)[1])
        try:
            there = await zygote.adopt(name, control, self._keeper.process(name))
        except Unavailable as error:
            log.warning("%s", error.message)
            await zygote.end()
            return
        for lost in [sandbox for sandbox in zygote.sandboxes.values() if sandbox.id not in there]:
            del zygote.sandboxes[lost.id]
            lost.ended(Exit(-1, "it ended while no server was there"))

    def tidy(self) -> set[Path]:
        """Remove what is left of others; the control groups that are in use."""
        for name, (_, control) in self._controls.items():  # without any sandbox
            os.close(control)
            self._keeper.drop(f"{ZYGOTE}{name}")
        known = {sandbox.path for sandbox in self.sandboxes} | {zygote.log for zygote in self.zygotes}
        for path in self._folder.iterdir():
            if path not in known:
                path.unlink(missing_ok=True)
        return {path for sandbox in self.sandboxes if sandbox.group for path in sandbox.group.paths}
