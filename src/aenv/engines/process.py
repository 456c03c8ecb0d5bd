"""The process engine: instances are plain processes without any isolation, for systems without namespaces."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

from aenv.engines import package_layers
from aenv.engines.base import Capabilities, Engine, Exit, SandboxRef, SandboxSpec
from aenv.engines.exits import classify
from aenv.errors import LoadError
from aenv.tracing.logging import getLogger

log = getLogger("process")

LOG_CHARACTERS = 256 * 1024
STOP_SECONDS = 5.0


class ProcessEngine(Engine):
    """Runs ``python -m aenv.main`` for each instance. The environment's code may do all that this user may."""

    isolation = "none"
    capabilities = Capabilities(
        networks=frozenset(("host",)),
        storage_media=frozenset(("disk",)),
        nested=True,  # on the local platform of the user
    )

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._copying: dict[str, asyncio.Task[None]] = {}
        self._warn()

    @classmethod
    def check_host(cls) -> str:
        return "instances are plain processes without any isolation"

    def _warn(self) -> None:
        log.warning("instances are plain processes: nothing keeps them from this user's files and network")

    async def start(self, spec: SandboxSpec) -> SandboxRef:
        name = secrets.token_hex(4)
        ref = SandboxRef(name, f"unix:{self._socket(name)}", secrets.token_urlsafe(24))
        try:
            with self._log_of(name).open("wb") as log_file:
                process = self._processes[name] = await self._launch(name, spec, ref.token, log_file)
            assert process.stdout is not None
            line = await process.stdout.readline()
        except BaseException:
            await asyncio.shield(self.stop(ref))
            raise
        if not line:
            code, output = await process.wait(), self.logs(ref)
            await self.stop(ref)
            raise LoadError(output.removeprefix("Error: ").strip() or f"the process ended with exit code {code}")
        self._copying[name] = asyncio.create_task(_copy(process.stdout, self._log_of(name)))
        return ref

    async def _launch(
        self, name: str, spec: SandboxSpec, token: str, log_file: IO[bytes]
    ) -> asyncio.subprocess.Process:
        """Start a process that prints one line when it serves."""
        packages = await package_layers.folders_of(spec.project, network=spec.network, variables=spec.fetching)
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "aenv.main", str(spec.code), "--uds", str(self._socket(name)), "--name", spec.name,
            "--grace", "1", "--", *spec.arguments,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log_file,
            cwd=spec.project,
            env={**package_layers.on_python_path(packages), **spec.fetching, **spec.variables, "AENV_TOKEN": token},
        )  # fmt: skip

    def _socket(self, name: str) -> Path:
        return self._folder / f"{name}.sock"

    async def poll(self, ref: SandboxRef) -> Exit | None:
        process = self._processes.get(ref.id)
        if process is None:
            return Exit(-1, "there is no such process")
        code = process.returncode
        return None if code is None else classify(code)

    async def stop(self, ref: SandboxRef) -> None:
        process = self._processes.pop(ref.id, None)
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        copying = self._copying.pop(ref.id, None)
        if copying is not None:
            await copying
        self._socket(ref.id).unlink(missing_ok=True)
        self._log_of(ref.id).unlink(missing_ok=True)

    async def running(self) -> AsyncIterator[SandboxRef]:
        for name, process in list(self._processes.items()):
            if process.returncode is None:
                yield SandboxRef(name, f"unix:{self._socket(name)}", "")

    async def close(self) -> None:
        refs = [SandboxRef(name, "", "") for name in self._processes]
        await asyncio.gather(*(self.stop(ref) for ref in refs))

    def logs(self, ref: SandboxRef) -> str:
        path = self._log_of(ref.id)
        return path.read_text(errors="replace")[-LOG_CHARACTERS:] if path.exists() else ""

    def _log_of(self, name: str) -> Path:
        return self._folder / f"{name}.log"


async def _copy(stream: asyncio.StreamReader, path: Path) -> None:
    """Copy a process's output to its log."""
    with path.open("ab") as log_file:
        while data := await stream.read(65536):
            log_file.write(data)
            log_file.flush()
