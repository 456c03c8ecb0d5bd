"""Find out what an environment offers, by loading it where it can do no harm."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from aenv.core.placement import OnPlatform
from aenv.errors import AEnvError, EnvironmentTimeoutError, LoadError
from aenv.schema import paths
from aenv.schema.hub import Schemas

SANDBOX_SECONDS = 600.0
"""Packages may have to be installed first."""
PLAIN_SECONDS = 60.0
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Described:
    """What an environment offers."""

    schemas: Schemas
    unsandboxed: str | None
    """Why it was loaded in a plain process; None when it was in a sandbox."""


async def describe(root: Path, name: str) -> Described:
    """Load the project in a sandbox of this machine; where the host allows none, in a plain process with a time limit.

    Raises:
        LoadError: the project's code cannot be loaded, or takes too long to.
    """
    try:
        return Described(await _in_a_sandbox(root, name), None)
    except AEnvError as error:
        if error.fault == "env":
            raise LoadError(error.message) from error
        if isinstance(error, EnvironmentTimeoutError):
            raise LoadError(f"loading the environment took too long: {error.message}") from error
        reason = error.message
    except OSError as error:  # no place for the platform's socket, no memory for another process
        reason = str(error)
    return Described(await _in_a_process(root), reason)


async def _in_a_sandbox(root: Path, name: str) -> Schemas:
    platform = OnPlatform(
        None, timeout=60.0, startup_timeout=SANDBOX_SECONDS, max_retries=1, token=None, source=str(root)
    )
    instance = None
    try:
        instance = await platform.create({"envName": name, "ttl": "10m"})
        instance = await platform.wait(instance, SANDBOX_SECONDS)
        client = platform.client(instance)
        try:
            tools = await client.exchange("GET", paths.TOOLS, timeout=60.0)
            others = (await client.exchange("GET", paths.FUNCTION_LIST, timeout=60.0))["data"]
        finally:
            client.close()
    finally:
        await platform.delete(instance)
    return Schemas(
        tools=tools["data"], functions=others["functions"], rewards=others["reward"], health=others["health"]
    )


async def _in_a_process(root: Path) -> Schemas:
    with tempfile.TemporaryDirectory(prefix="aenv-describe-") as folder:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "aenv.runtime.describe", str(root),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            cwd=folder, env={**{name: os.environ[name] for name in _PASSED_ON if name in os.environ}, "HOME": folder},
            start_new_session=True,
        )  # fmt: skip
        talk = asyncio.ensure_future(process.communicate())
        try:
            done, _ = await asyncio.wait({talk}, timeout=PLAIN_SECONDS)
        finally:
            _end(process)
            said, noise = await talk
    if not done:
        raise LoadError(f"loading the environment took longer than {PLAIN_SECONDS:g} s")
    try:
        found = json.loads(said)
    except ValueError:
        tail = noise.decode(errors="replace").strip()[-1500:]
        raise LoadError(f"loading the environment ended with exit code {process.returncode}:\n{tail}") from None
    if "error" in found:
        raise LoadError(found["error"])
    return Schemas.model_validate(found)


def _end(process: asyncio.subprocess.Process) -> None:
    """All of it: it leads a group of its own."""
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        return
