"""Import the versions of a 0.1 hub from its Redis. That hub stored no files, so imported versions have none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from aenv.errors import AEnvError, Conflict
from aenv.hub.catalog import Catalog
from aenv.schema.envhub import RELEASED, EnvDetail, EnvSummary
from aenv.schema.names import STATUSES

_BLOCKS = {"buildConfig": "build_config", "testConfig": "test_config", "deployConfig": "deploy_config"}


@dataclass(slots=True)
class ImportResult:
    """Counts of an import."""

    records: int = 0
    there: int = 0
    """Versions that this hub has already; they are not changed."""
    refused: int = 0
    """Documents that are not a valid version."""


async def import_legacy(catalog: Catalog, documents: Iterable[bytes]) -> ImportResult:
    """Register every version of a 0.1 hub, and release the ones that were released there."""
    done = ImportResult()
    rest = iter(documents)
    while (document := await asyncio.to_thread(next, rest, None)) is not None:
        try:
            env: dict[str, Any] = json.loads(document)["env"]
            status = STATUSES[env.get("status") or 0]
            version, detail = _read(env)
            await catalog.register(version, detail, update=False)
            if status == RELEASED:
                await catalog.release(version.name, version.version)
            done.records += 1
        except Conflict:
            done.there += 1
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, ValidationError, AEnvError):
            done.refused += 1
    return done


def _read(env: dict[str, Any]) -> tuple[EnvSummary, EnvDetail]:
    status = STATUSES[env.get("status") or 0]
    version = EnvSummary(
        name=env["name"],
        version=env["version"],
        status="Ready" if status == RELEASED else status,  # type: ignore[arg-type]
        description=env.get("description") or "",
        tags=env.get("tags") or [],
    )
    config = {new: env[old] for new, old in _BLOCKS.items() if env.get(old)}
    return version, EnvDetail(
        config={"name": version.name, "version": version.version, **config},
        artifacts=env.get("artifacts") or [],
        code_url=env.get("code_url") or "",
    )
