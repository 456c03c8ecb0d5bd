"""Find out which tools and functions a project declares, by loading it in a sandbox."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from aenv.errors import (
    AEnvError,
    EnvironmentTimeoutError,
    InstanceEnded,
    LoadError,
    Unavailable,
)
from aenv.isolation.files.scratch_folders import scratch_folder
from aenv.schema import paths
from aenv.schema.envhub import Schemas
from aenv.sdk.placement import PlatformPlacement
from aenv.subprocesses import run_async

SANDBOX_SECONDS = 600.0
"""Start-up timeout; the project's packages may have to be installed first."""
PLAIN_SECONDS = 60.0
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


async def describe(root: Path, name: str, *, sandbox: bool = True, packages: Sequence[str] = ()) -> Schemas:
    """Load the project in an instance of the local platform, and return the schemas of its declarations.

    The instance is a sandbox, unless ``AENV_ENGINE=process`` makes instances of the local platform plain processes.
    ``sandbox=False`` runs its code as the calling user, in a plain process with a time limit. Only the user may choose
    that; it is never a fallback. It then imports from the folders ``packages`` as well.

    Raises:
        LoadError: the project's code cannot be loaded, ends the instance, or takes too long.
        Unavailable: this machine cannot create a sandbox, or not at the moment.
    """
    if not sandbox:
        return await _describe_in_process(root, packages)
    try:
        return await _describe_in_sandbox(root, name)
    except AEnvError as error:
        if error.fault == "env":
            raise LoadError(error.message) from error
        if isinstance(error, InstanceEnded) or error.details.get("sent"):  # the instance had started
            raise LoadError(f"the environment ended after it was loaded: {error.message}") from error
        if isinstance(error, EnvironmentTimeoutError):
            raise LoadError(f"loading the environment took too long: {error.message}") from error
        raise _no_sandbox(error.message) from error
    except OSError as error:  # no folder for the platform's socket, or no memory for another process
        raise _no_sandbox(str(error)) from error


def _no_sandbox(reason: str) -> Unavailable:
    return Unavailable(
        f"the project was not loaded, because no sandbox could be created for it: {reason}",
        details={
            "hint": "Run aenv doctor. --no-load publishes without loading; --no-sandbox runs the project's code "
            "as your user, without isolation."
        },
    )


async def _describe_in_sandbox(root: Path, name: str) -> Schemas:
    platform = PlatformPlacement(
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


async def _describe_in_process(root: Path, packages: Sequence[str]) -> Schemas:
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    if packages:
        passed["PYTHONPATH"] = os.pathsep.join([*packages, *filter(None, [passed.get("PYTHONPATH")])])
    with scratch_folder("describe") as folder:
        try:
            done = await run_async(
                [sys.executable, "-P", "-m", "aenv.runtime.describe", str(root)],
                cwd=folder,
                env={**passed, "HOME": folder},
                timeout=PLAIN_SECONDS,
                own_group=True,
            )
        except TimeoutError:
            raise LoadError(f"loading the environment took longer than {PLAIN_SECONDS:g} s") from None
    try:
        found = json.loads(done.stdout)
    except ValueError:
        tail = done.stderr.strip()[-1500:]
        raise LoadError(f"loading the environment ended with exit code {done.code}:\n{tail}") from None
    if "error" in found:
        raise LoadError(found["error"])
    return Schemas.model_validate(found)
