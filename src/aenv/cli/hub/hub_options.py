"""Helpers of the hub commands: open the hub, parse a version, show versions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from aenv.cli.output import columns
from aenv.errors import UsageError

if TYPE_CHECKING:
    from aenv.schema.envhub import EnvSummary, Hub
    from aenv.schema.ref import EnvRef

T = TypeVar("T")
_SHORT = 60


@asynccontextmanager
async def opened() -> AsyncIterator[Hub]:
    """Open the hub of the settings: the one at its URL, else the one in the user's data folder."""
    from aenv.hub.open_hub import open_hub

    hub = open_hub()
    try:
        yield hub
    finally:
        await hub.close()


def with_hub(work: Callable[[Hub], Awaitable[T]]) -> T:
    """Run an action with the hub, then close it."""

    async def main() -> T:
        async with opened() as hub:
            return await work(hub)

    return asyncio.run(main())


def reference(text: str, version: str | None = None) -> EnvRef:
    """Parse ``NAME[@VERSION]``, or take the version from its own option.

    Raises:
        UsageError: it cannot be one.
    """
    from aenv.schema.ref import EnvRef

    if version and "@" in text:
        raise UsageError(f"the version is given twice: {text} and --version {version}")
    try:
        return EnvRef.parse(f"{text}@{version}" if version else text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def one_version(text: str | None, version: str | None) -> tuple[str, str]:
    """Return the exact version: as named, else that of the project in the current directory.

    Raises:
        UsageError: only a name, or a range, was given.
    """
    from aenv.project import manifest
    from aenv.schema.names import check_version

    if text is None:
        own = manifest.load(Path()).manifest
        return own.name, version or own.version
    ref = reference(text, version)
    try:
        return ref.name, check_version(ref.want)
    except ValueError:
        hint = {"hint": f"List them: aenv get {ref.name} --format table"}
        raise UsageError(f"give an exact version, like {ref.name}@1.0.0", hint) from None


def document(version: EnvSummary) -> dict[str, Any]:
    """Return a version as JSON: the keys that existing programs read, and the hub's own."""
    from aenv.schema.envhub import status_number

    said = version.model_dump()
    config = said.get("config") or {}
    said.update(
        id=f"{version.name}@{version.version}",
        status=status_number(version.status),
        status_name=version.status,
    )
    if config:
        blocks = {"build_config": "buildConfig", "test_config": "testConfig", "deploy_config": "deployConfig"}
        said.update({key: config.get(name) for key, name in blocks.items()})
    return said


def table(versions: list[EnvSummary]) -> str:
    """Format versions as a table."""
    if not versions:
        return "no environments"
    rows = [("NAME", "VERSION", "STATUS", "DESCRIPTION", "CREATED")]
    rows += [
        (each.name, each.version, state(each), _short(each.description), each.created_at[:16].replace("T", " "))
        for each in versions
    ]
    return columns(rows, indent="")


def state(version: EnvSummary) -> str:
    """Return the state of a version: development, released, deprecated or yanked."""
    if version.yanked is not None:
        return "yanked"
    if version.deprecated is not None:
        return "deprecated"
    return "built in" if version.builtin else version.status


def _short(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= _SHORT else f"{line[: _SHORT - 1]}…"
