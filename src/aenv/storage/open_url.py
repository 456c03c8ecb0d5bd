"""Open a record store or a blob store by its URL."""

from __future__ import annotations

import os
from pathlib import Path

from aenv import plugins
from aenv.errors import ConfigError
from aenv.storage.base import Store
from aenv.storage.blobs import BlobStore, DiskBlobs

STORES = "aenv.stores"


def data_folder() -> Path:
    """Return the folder of this user's data: ``AENV_DATA_DIR``, else ``aenv`` in the XDG data folder."""
    given = os.environ.get("AENV_DATA_DIR")
    if given:
        return Path(given).expanduser().absolute()
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "aenv"


def open_store(url: str) -> Store:
    """Open ``sqlite:/path`` or a bare path, ``redis://…`` or ``rediss://…``; other schemes come from plug-ins."""
    scheme, colon, rest = url.partition(":")
    if not colon or "/" in scheme:
        scheme, rest = "sqlite", url
    if scheme == "sqlite":
        from aenv.storage.sqlite import SqliteStore

        path = Path(rest.removeprefix("//") or "").expanduser()
        if not path.name or path.is_dir():
            raise ConfigError(f"'{url}' is not the path of a file; write it like sqlite:/var/lib/aenv/hub.db")
        return SqliteStore(path.absolute())
    if scheme in ("redis", "rediss", "unix"):
        from aenv.storage.redis import RedisStore

        return RedisStore(url)
    found: Store = plugins.load(STORES, scheme)(url)
    return found


def open_blobs(url: str) -> BlobStore:
    """Open ``s3://bucket/prefix``, or a folder."""
    if url.startswith("s3://"):
        from aenv.storage.s3 import S3Blobs

        return S3Blobs(url)
    if "://" in url:
        raise ConfigError(f"invalid blob store '{url}'; expected a folder or s3://bucket/prefix")
    return DiskBlobs(Path(url).expanduser().absolute())
