"""Copy files and folders into an instance and out of it."""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from aenv.client.instance_client import InstanceClient
from aenv.schema import paths

STREAMED = 8 * 1024 * 1024
"""Size in bytes above which a file is streamed instead of being read into memory."""
STREAM_SECONDS = 600.0
"""Default timeout of a streamed transfer, which may have any size."""

Send = Callable[[InstanceClient, float], Awaitable[Any]]
"""A request to an instance, with a timeout in seconds."""


def is_streamed(source: Path) -> bool:
    """Return whether to stream ``source``: a folder, or a file too large to be read into memory."""
    return source.is_dir() or source.stat().st_size > STREAMED


def put_file(data: bytes | str | Path, path: str) -> Send:
    """Write bytes, text or a file of this machine to a file in the instance."""
    body = data.read_bytes() if isinstance(data, Path) else data.encode() if isinstance(data, str) else data

    async def put(client: InstanceClient, seconds: float) -> Any:
        return await client.exchange("PUT", _query(paths.FILES, path), body, timeout=seconds)

    return put


def put_stream(source: Path, path: str) -> Send:
    """Stream a folder to a folder, or a file to a file, as a tar archive."""
    from aenv.isolation.files.tar_streams import pack_stream

    folder, name = (path, "") if source.is_dir() else posixpath.split(path)

    async def put(client: InstanceClient, seconds: float) -> Any:
        async with contextlib.aclosing(pack_stream(source, asyncio.to_thread, name)) as tar:
            return await client.send_stream(_query(paths.ARCHIVE, folder or "."), tar, timeout=seconds)

    return put


def get_file(path: str) -> Send:
    """Read a file of the instance."""

    async def get(client: InstanceClient, seconds: float) -> Any:
        return await client.fetch(_query(paths.FILES, path), timeout=seconds)

    return get


def get_stream(path: str, target: Path) -> Send:
    """Stream a file or folder of the instance to this machine."""
    from aenv.isolation.files.tar_streams import unpack_stream

    async def get(client: InstanceClient, seconds: float) -> Any:
        async with client.receive_stream(_query(paths.ARCHIVE, path), timeout=seconds) as stream:
            await unpack_stream(
                stream, target, asyncio.to_thread, file_name=posixpath.basename(path.rstrip("/")) or "file"
            )

    return get


def _query(route: str, path: str) -> str:
    return f"{route}?{urlencode({'path': path})}"
