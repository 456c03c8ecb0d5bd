"""Download the files of a version from a hub, into a user's folder or into the cache that instances run from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from aenv.errors import InvalidBundle, NotFound
from aenv.project.unpack import unpack
from aenv.schema.bundle import Bundle, parse
from aenv.schema.envhub import EnvVersion, Hub
from aenv.schema.ref import is_digest

Progress = Callable[[int], None]


async def bundle_of(hub: Hub, version: EnvVersion) -> Bundle:
    """Download and check the manifest of a version.

    Raises:
        NotFound: the version was registered without files.
        InvalidBundle: the hub sent something else.
    """
    title = f"{version.name}@{version.version}"
    if not version.digest:
        raise NotFound(f"{title} has no files in the hub: it was registered without a bundle")
    try:
        bundle = parse(await hub.get_blob(version.digest))
    except ValueError as error:
        raise InvalidBundle(f"{title}: {error}") from None
    if bundle.digest() != version.digest or (bundle.name, bundle.version) != (version.name, version.version):
        raise InvalidBundle(f"{title}: the hub sent another bundle than {version.digest}")
    if version.config == bundle.config:  # equal, with keys in the author's order
        return bundle.model_copy(update={"config": version.config})
    return bundle


async def fetch(hub: Hub, version: EnvVersion, target: Path, progress: Progress = lambda size: None) -> Bundle:
    """Write the version's files into a new folder."""
    bundle = await bundle_of(hub, version)
    await unpack(bundle, hub.get_blob, target, progress=progress)
    return bundle


async def cached(hub: Hub, version: EnvVersion, folder: Path) -> Path:
    """Return a read-only folder with the version's files in a cache. Concurrent processes may race: the first wins.

    Raises:
        NotFound: the version was registered without files.
        InvalidBundle: the hub sent something else, or an invalid digest.
    """
    if version.digest and not is_digest(version.digest):  # the digest becomes the name of a folder
        raise InvalidBundle(
            f"{version.name}@{version.version}: the hub sent the invalid digest {version.digest[:100]!r}"
        )
    target = folder / "bundles" / version.digest.replace(":", "-")
    if version.digest and target.is_dir():
        return target
    bundle = await bundle_of(hub, version)
    try:
        await unpack(bundle, hub.get_blob, target, read_only=True)
    except Exception:
        if not await asyncio.to_thread(target.is_dir):  # else another process was faster
            raise
    return target
