"""Publish a bundle to a hub: upload the missing blobs in parallel, then register the version.

An interrupted push leaves only unreferenced blobs; the next push finds them and uploads the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from aenv.errors import ConfigError, Conflict, InvalidBundle, NotFound
from aenv.project import manifest
from aenv.project.bundles.packing import Packed
from aenv.project.fetch import bundle_of
from aenv.schema.bundle import differences
from aenv.schema.envhub import MISSING_LIMIT, RELEASED, EnvVersion, Hub, Pushed, PushRequest, Schemas
from aenv.schema.requirements import LOCK

AT_ONCE = 4
"""Concurrent uploads of blobs: at most 32 MiB of memory."""
ROUNDS = 3
"""Attempts to push: the hub's garbage collection may remove blobs that no version refers to yet."""
_README = ("README.md", "readme.md", "README.rst", "README.txt", "README")
_TEXT_LIMIT = 1_000_000

Progress = Callable[[int], None]


def request_for(packed: Packed, schemas: Schemas, *, author: str = "", public: bool | None = None) -> PushRequest:
    """Return the request that registers a version: its manifest, description, schemas and metadata.

    Raises:
        ConfigError: a value exceeds the limits of a hub.
    """
    bundle = packed.bundle
    own = manifest.Manifest.model_validate(bundle.config)
    try:
        return PushRequest(
            bundle=bundle.model_dump(),
            description=own.description,
            readme=_readme(packed),
            tags=own.tags,
            schemas=schemas,
            author=author,
            dependencies=own.dependencies,
            artifacts=[artifact.document() for artifact in own.artifacts],
            lock=_lock(packed),
            public=public,
        )
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_input=False)]
        raise ConfigError("\n".join(["these values exceed the limits of a hub:", *lines])) from None


async def published(hub: Hub, packed: Packed) -> EnvVersion | None:
    """Return the version as it is on the hub, or None."""
    try:
        found = await hub.get(packed.bundle.name, packed.bundle.version)
    except NotFound:
        return None
    return found if found.version == packed.bundle.version else None  # a short version also matches a range


async def refuse_other_content(hub: Hub, packed: Packed, known: EnvVersion) -> None:
    """Detect a conflict early, before anything is loaded or uploaded.

    Raises:
        Conflict: the version exists with other content.
    """
    if known.digest == packed.bundle.digest():
        return
    if not known.digest and known.status != RELEASED:  # the earlier CLI registered it without files
        return
    title = f"{known.name}@{known.version}"
    differs = differences(await bundle_of(hub, known), packed.bundle) if known.digest else []
    if known.status == RELEASED:
        hint = "Raise the version in config.json: a released one never changes."
        raise Conflict(f"{title} is released with other content", details={"differs": differs, "hint": hint})
    hint = "Raise the version in config.json, or replace this one with: aenv push --force"
    raise Conflict(f"{title} exists with other content", details={"differs": differs, "hint": hint})


async def missing(hub: Hub, packed: Packed) -> dict[str, int]:
    """Return the blobs that the hub does not have, with their sizes."""
    blobs = packed.bundle.blobs()
    absent: list[str] = []
    digests = list(blobs)
    for start in range(0, len(digests), MISSING_LIMIT):
        absent += await hub.missing(digests[start : start + MISSING_LIMIT])
    return {digest: blobs[digest] for digest in absent if digest in blobs}


async def send(hub: Hub, packed: Packed, blobs: dict[str, int], progress: Progress) -> None:
    """Upload these blobs."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def put(digest: str) -> None:
        async with slots:
            await hub.put_blob(digest, await asyncio.to_thread(packed.read, digest))
            progress(blobs[digest])

    try:
        async with asyncio.TaskGroup() as group:
            for digest in blobs:
                group.create_task(put(digest))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def publish(hub: Hub, packed: Packed, request: PushRequest, *, force: bool, progress: Progress) -> Pushed:
    """Upload the missing blobs, then register the version.

    Raises:
        Conflict: the version exists with other content.
    """
    for left in reversed(range(ROUNDS)):
        await send(hub, packed, await missing(hub, packed), progress)
        try:
            return await hub.push(request, force)
        except InvalidBundle as error:
            if not left or not error.details.get("missing"):
                raise
    raise AssertionError("unreachable")


def _readme(packed: Packed) -> str:
    names = {file.path for file in packed.bundle.files}
    found = next((name for name in _README if name in names), None)
    return _text(packed.root / found)[:_TEXT_LIMIT] if found else ""


def _lock(packed: Packed) -> str:
    """Return names and versions of the locked packages; the digests are in the bundle."""
    if LOCK not in {file.path for file in packed.bundle.files}:
        return ""
    lines = (line.rstrip("\\ ") for line in _text(packed.root / LOCK).splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith((" ", "#")))[:_TEXT_LIMIT]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").replace("\0", "\ufffd")
