"""Whether instances can be created just now.

A create that fails for a reason of the platform's own is noted. From then on, whoever asks has a small sandbox started
and stopped: what one tenant's environment does wrong does not make the platform unready, and what is wrong with the
machine is found to be over without anybody's create having to fail for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from aenv.engines.base import Engine, SandboxSpec
from aenv.errors import AEnvError, Overloaded, Unavailable
from aenv.isolation.network.policy import Network
from aenv.tracing.logging import getLogger

log = getLogger("ready")

FREE_BYTES, FREE_FILES = 16 * 1024 * 1024, 256
"""A folder that instances are made in has room for at least so much."""
PROBE_EVERY, PROBE_SECONDS = 5.0, 60.0


class CreateHealth:
    """What became of the last creates."""

    def __init__(self) -> None:
        self.failure: str | None = None
        """Why the last one failed, if that was the platform's fault and none has worked since."""

    def failed(self, error: Exception) -> None:
        """One failed. That the platform is full, or the author's code wrong, is not the platform's fault."""
        if isinstance(error, Overloaded) or (isinstance(error, AEnvError) and error.fault != "infra"):
            return
        self.failure = error.message if isinstance(error, AEnvError) else repr(error)

    def worked(self) -> None:
        """One works."""
        self.failure = None


class CreateProbe:
    """Starts a sandbox after a create has failed, to see whether another one would."""

    def __init__(self, engine: Engine, creates: CreateHealth, folder: Path | None = None) -> None:
        """``folder``: where its project lies for as long as it takes."""
        self._engine = engine
        self._creates = creates
        self._folder = folder
        self._last = -PROBE_EVERY
        self._running: asyncio.Task[None] | None = None

    async def check(self) -> None:
        """Raise Unavailable while creates fail."""
        if self._creates.failure is None:
            return
        if self._running is None and time.monotonic() - self._last >= PROBE_EVERY:
            self._running = asyncio.create_task(self._try())
        if self._running is not None:
            await asyncio.shield(self._running)
        if self._creates.failure is not None:
            raise Unavailable(f"creates fail: {self._creates.failure}")

    async def close(self) -> None:
        """Give up a probe that is under way."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running

    async def _try(self) -> None:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self._start_and_stop()
            self._creates.worked()
            log.info("creates work again")
        except TimeoutError:
            self._creates.failed(Unavailable(f"a probe took over {PROBE_SECONDS:g} s"))
        except Exception as error:
            self._creates.failed(error)
        finally:
            self._last, self._running = time.monotonic(), None

    async def _start_and_stop(self) -> None:
        project = Path(tempfile.mkdtemp(prefix="probe-", dir=self._folder))
        try:
            project.chmod(0o755)
            code = project / "probe.py"
            code.write_text('"""Starts, and has no tools."""\n')
            code.chmod(0o644)
            mode = (
                "none"
                if "none" in self._engine.capabilities.networks
                else next(iter(self._engine.capabilities.networks))
            )
            await self._engine.stop(
                await self._engine.start(SandboxSpec("probe", project, code, network=Network(mode), mcp=False))
            )
        finally:
            shutil.rmtree(project, ignore_errors=True)


async def have_room(folders: Iterable[Path]) -> None:
    """Raise Unavailable when one of these folders is full, or cannot be written to."""
    await asyncio.to_thread(_have_room, list(folders))


def _have_room(folders: list[Path]) -> None:
    for folder in folders:
        try:
            room = os.statvfs(folder)
            free, files = room.f_bavail * room.f_frsize, room.f_favail if room.f_files else FREE_FILES
            if free < FREE_BYTES or files < FREE_FILES:
                raise Unavailable(f"{folder} is full: {free} bytes and {files} files are free")
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"\0" * 4096)
                file.flush()
        except OSError as error:
            raise Unavailable(f"{folder} cannot be written to: {error.strerror or error}") from None
