"""Readiness of creates: whether an instance could be created now.

A create that fails through the platform's own fault is recorded. From then on, each readiness check starts and stops a
small sandbox. So a tenant's broken environment does not make the platform unready, and a repaired machine is noticed
before another create fails.
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

MIN_FREE_BYTES, MIN_FREE_FILES = 16 * 1024 * 1024, 256
"""Free bytes and inodes below which a folder counts as full."""
PROBE_INTERVAL, PROBE_TIMEOUT = 5.0, 60.0
"""Seconds between two probes, and the timeout of one."""
PROBE_CODE = "from aenv import register_function\n\n\n@register_function\ndef probe() -> None:\n    pass\n"
"""The smallest environment that loads: one that declares nothing is refused."""


class CreateHealth:
    """The outcome of the latest creates."""

    def __init__(self) -> None:
        self.failure: str | None = None
        """Error of the last create, if it was the platform's fault and no create has succeeded since."""

    def record_failure(self, error: Exception) -> None:
        """Record a failed create, unless the platform was full or the fault is the author's or the caller's."""
        if isinstance(error, Overloaded) or (isinstance(error, AEnvError) and error.fault != "infra"):
            return
        self.failure = error.message if isinstance(error, AEnvError) else repr(error)

    def record_success(self) -> None:
        """Record a create that worked."""
        self.failure = None


class CreateProbe:
    """Starts a small sandbox after a failed create, to find out whether creates work again."""

    def __init__(self, engine: Engine, health: CreateHealth, folder: Path | None = None) -> None:
        """``folder``: holds the probe's project while it runs."""
        self._engine = engine
        self._health = health
        self._folder = folder
        self._last_probe = -PROBE_INTERVAL
        self._running: asyncio.Task[None] | None = None

    async def check(self) -> None:
        """Raise Unavailable while creates fail."""
        if self._health.failure is None:
            return
        if self._running is None and time.monotonic() - self._last_probe >= PROBE_INTERVAL:
            self._running = asyncio.create_task(self._probe())
        if self._running is not None:
            await asyncio.shield(self._running)
        if self._health.failure is not None:
            raise Unavailable(f"creates fail: {self._health.failure}")

    async def close(self) -> None:
        """Cancel a running probe."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running

    async def _probe(self) -> None:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT):
                await self._start_and_stop()
            self._health.record_success()
            log.info("creates work again")
        except TimeoutError:
            self._health.record_failure(Unavailable(f"a probe took more than {PROBE_TIMEOUT:g} s"))
        except Exception as error:
            self._health.record_failure(error)
        finally:
            self._last_probe, self._running = time.monotonic(), None

    async def _start_and_stop(self) -> None:
        project = Path(tempfile.mkdtemp(prefix="probe-", dir=self._folder))
        try:
            project.chmod(0o755)
            code = project / "probe.py"
            code.write_text(PROBE_CODE)
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


async def check_free_space(folders: Iterable[Path]) -> None:
    """Raise Unavailable if one of these folders is full or cannot be written to."""
    await asyncio.to_thread(_check_free_space, list(folders))


def _check_free_space(folders: list[Path]) -> None:
    for folder in folders:
        try:
            filesystem = os.statvfs(folder)
            free, files = (
                filesystem.f_bavail * filesystem.f_frsize,
                filesystem.f_favail if filesystem.f_files else MIN_FREE_FILES,
            )
            if free < MIN_FREE_BYTES or files < MIN_FREE_FILES:
                raise Unavailable(f"{folder} is full: {free} bytes and {files} files are free")
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"\0" * 4096)
                file.flush()
        except OSError as error:
            raise Unavailable(f"{folder} cannot be written to: {error.strerror or error}") from None
