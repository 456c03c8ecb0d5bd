"""Built-in environments: present in every hub, released, and immutable.

Their projects are in ``envs/``, in the layout that ``aenv init`` creates, and are pushed like any other when a hub
is opened that does not have them yet. Their tool schemas are stored beside them (``.aenv/schemas.json``), so that
seeding does not import their code.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from aenv._version import __version__
from aenv.errors import AEnvError
from aenv.hub.catalog import Catalog
from aenv.project.builtin_envs import folder
from aenv.schema.envhub import PushRequest, Schemas
from aenv.storage.base import Put

log = logging.getLogger("aenv.hub")

META, SEEDED = "meta", "builtin"
SCHEMAS = Path(".aenv/schemas.json")


def projects() -> list[Path]:
    """Return the project folder of each built-in environment."""
    return sorted(path.parent for path in folder().glob("*/config.json"))


async def seed(catalog: Catalog) -> None:
    """Push the built-in environments that the hub lacks.

    An environment that cannot be read is skipped with a warning, so that the rest of the hub works.
    """
    state = _state()
    known = await catalog.store.get(META, SEEDED)
    if known is not None and known.value == state:
        return
    for project in projects():
        try:
            await _seed_one(catalog, project)
        except AEnvError as error:
            log.warning("skipping built-in environment %s: %s", project.name, error.message)
    await catalog.store.commit(Put(META, SEEDED, state))


async def _seed_one(catalog: Catalog, project: Path) -> None:
    from aenv.project.bundles.packing import pack  # not needed when the hub is already seeded

    packed = pack(project)
    digests = list(packed.bundle.blobs())
    for digest, size in zip(digests, await catalog.blobs.sizes(digests), strict=True):
        if size is None:
            await catalog.blobs.put(digest, packed.read(digest))
    config = packed.bundle.config
    readme = project / "README.md"
    schemas = project / SCHEMAS
    request = PushRequest(
        bundle=packed.bundle.model_dump(),
        description=config.get("description") or "",
        readme=readme.read_text(encoding="utf-8") if readme.is_file() else "",
        tags=config.get("tags") or [],
        schemas=Schemas.model_validate_json(schemas.read_bytes()) if schemas.is_file() else Schemas(),
        author="aenv",
        artifacts=config.get("artifacts") or [],
        public=True,
    )
    await catalog.push(request, force=False, author="aenv", builtin=True)


def _state() -> bytes:
    """Return a fingerprint of the built-in environments that changes with any of their files."""
    files = sorted(path for project in projects() for path in project.rglob("*") if "__pycache__" not in path.parts)
    return json.dumps([__version__, *((str(path.relative_to(folder())), *_stamp(path)) for path in files)]).encode()


def _stamp(path: Path) -> tuple[int, int]:
    about = path.lstat()
    return about.st_size, about.st_mtime_ns
