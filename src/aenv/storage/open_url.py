"""A store or a place for blobs, by its URL."""

from __future__ import annotations

import os
from pathlib import Path

from aenv import plugins
from aenv.errors import ConfigError
from aenv.storage.base import Store
from aenv.storage.blobs import BlobStore, DiskBlobs

STORES = "aenv.stores"


def data_folder() -> Path:
    """Where this user's things are kept: ``AENV_DATA_DIR``, else ``aenv`` in the user's data folder."""
    given = os.environ.get("AENV_DATA_DIR")
    if given:
        return Path(given).expanduser().absolute()
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "aenv"


def open_store(url: str) -> Store:
    """``sqlite:/path`` or a bare path, ``redis://…``, ``rediss://…``; other schemes come from plug-ins."""
    scheme, colon, rest = url.partition(":")
    if not colon or "/" in scheme:
        scheme, rest = "sqlite", url
    if scheme == "sqlite":
        from aenv.storage.sqlite import SqliteStore

        path = Path(rest.removeprefix("//") or "").expanduser()
        if not path.name or path.is_dir():
            raise ConfigError(f"'{url}' names no file; write it like sqlite:/var/lib/aenv/hub.db")
        return SqliteStore(path.absolute())
    if scheme in ("redis", "rediss", "unix"):
        from aenv.storage.redis import RedisStore

        return RedisStore(url)
    found: Store = plugins.load(STORES, scheme)(url)
    return found


def open_blobs(url: str) -> BlobStore:
    """``s3://bucket/prefix``, or a folder."""
    if url.startswith("s3://"):
        from aenv.storage.s3 import S3Blobs

        return S3Blobs(url)
    if "://" in url:
        raise ConfigError(f"blobs can be in a folder or in s3://bucket/prefix, not in '{url}'")
    return DiskBlobs(Path(url).expanduser().absolute())
