"""Unpack a bundle: atomically, and never outside of its folder.

Files are written into a temporary folder next to the target, which is renamed when it is complete. Links are created
last, so that nothing is ever written through one. Every blob is checked against its digest.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from aenv.errors import EnvironmentError, InvalidBundle, UsageError
from aenv.project.bundles.packing import config_text
from aenv.schema.bundle import BLOB_LIMIT, CONFIG, Bundle, digest_of

AT_ONCE = 8
"""Concurrent downloads of blobs: at most 64 MiB of memory."""
SPARE_ROOM = 64 * 1024 * 1024

Fetch = Callable[[str], Awaitable[bytes]]


async def unpack(
    bundle: Bundle,
    fetch: Fetch,
    target: Path,
    *,
    read_only: bool = False,
    progress: Callable[[int], None] = lambda size: None,
) -> None:
    """Create the folder ``target`` from a bundle; ``fetch`` returns the bytes of a blob.

    Raises:
        UsageError: ``target`` exists already.
        InvalidBundle: a blob does not match its digest.
    """
    target = target.absolute()
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise UsageError(f"{target} exists already", {"hint": "Choose another folder, or remove this one."})
    new = [folder for folder in target.parents if not folder.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    room = shutil.disk_usage(target.parent).free
    made = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}")
    try:
        if bundle.size + SPARE_ROOM > room:
            raise EnvironmentError(f"{bundle.size} bytes do not fit on {target.parent}, which has {room} bytes free")
        made.mkdir(mode=0o755)
        await _fill(bundle, fetch, made, progress)
        if read_only:
            await asyncio.to_thread(_make_read_only, made)
        made.rename(target)
    except BaseException:
        await asyncio.to_thread(remove, made)
        for folder in new:
            with contextlib.suppress(OSError):  # another process has used the folder
                folder.rmdir()
        raise


async def _fill(bundle: Bundle, fetch: Fetch, root: Path, progress: Callable[[int], None]) -> None:
    uses: dict[str, list[tuple[Path, int]]] = {}
    for file in bundle.files:
        path = root / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        _create(path, file.mode, file.size)
        for number, digest in enumerate(file.blobs):
            uses.setdefault(digest, []).append((path, number * BLOB_LIMIT))
    _create(root / CONFIG, 0o644, 0)
    (root / CONFIG).write_bytes(config_text(bundle))

    slots = asyncio.Semaphore(AT_ONCE)

    async def place(digest: str, size: int) -> None:
        async with slots:
            data = await fetch(digest)
            if len(data) != size or digest_of(data) != digest:
                raise InvalidBundle(f"the blob {digest} does not match its digest")
            await asyncio.to_thread(_write, data, uses[digest])
            progress(size)

    try:
        async with asyncio.TaskGroup() as group:
            for digest, size in bundle.blobs().items():
                group.create_task(place(digest, size))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    for link in bundle.links:
        path = root / link.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(link.target)


def _create(path: Path, mode: int, size: int) -> None:
    """Create a file with exactly this mode, regardless of the umask."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        os.fchmod(descriptor, mode)
        os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


def _write(data: bytes, places: list[tuple[Path, int]]) -> None:
    for path, offset in places:
        with path.open("r+b", buffering=0) as file:
            file.seek(offset)
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]


def _make_read_only(root: Path) -> None:
    """Remove write permission below ``root``; the folder itself keeps it, or it could not be renamed."""
    for folder, folders, files in os.walk(root):
        for name in files:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & 0o555)
        for name in folders:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(0o555)


def remove(root: Path) -> None:
    """Remove an unpacked bundle, read-only or not."""
    for folder, folders, _ in os.walk(root):
        for name in folders:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(0o755)
    shutil.rmtree(root, ignore_errors=True)
