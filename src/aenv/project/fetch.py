"""Download the files of a version from a hub, into a user's folder or into the cache that instances run from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from aenv.errors import InvalidBundle
from aenv.project import registered
from aenv.project.bundles.unpack import unpack
from aenv.schema.bundle import Bundle, parse
from aenv.schema.envhub import EnvVersion, Hub
from aenv.schema.ref import is_digest
from aenv.storage.cache_folders import CacheFolder

Progress = Callable[[int], None]


async def bundle_of(hub: Hub, version: EnvVersion) -> Bundle:
    """Download and check the manifest of a version.

    Raises:
        NotFound: the version was registered without files.
        InvalidBundle: the hub sent something else.
    """
    title = f"{version.name}@{version.version}"
    if not version.digest:
        raise registered.no_files(version)
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

    A version without files that has an image gives a folder with its config.json alone.

    Raises:
        NotFound: the version was registered without files.
        InvalidBundle: the hub sent something else, or an invalid digest.
    """
    if version.digest and not is_digest(version.digest):  # the digest becomes the name of a folder
        raise InvalidBundle(
            f"{version.name}@{version.version}: the hub sent the invalid digest {version.digest[:100]!r}"
        )
    if not version.digest and registered.has_image(version):
        return await asyncio.to_thread(registered.folder_of, version, folder)
    bundles = cache(folder)
    name = version.digest.replace(":", "-")
    found = bundles.use(name) if name else None
    while found is None:
        bundle = await bundle_of(hub, version)
        target = bundles.folder / name
        try:
            await unpack(bundle, hub.get_blob, target, read_only=True)
        except Exception:
            if not await asyncio.to_thread(target.is_dir):  # else another process was faster
                raise
        found = bundles.use(name)
    return found


def cache(folder: Path) -> CacheFolder:
    """Return the cache of unpacked bundles in a cache folder."""
    return CacheFolder("bundles", folder / "bundles", "environments from the hub")
