"""Description of an episode's environment in its record: name, version, digest, and where its files are."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from aenv.errors import AEnvError
from aenv.rollout.world import World
from aenv.sdk.environment import Environment


class EnvironmentInfo:
    """Describes environments; the files of a project are read once."""

    def __init__(self) -> None:
        self._local: dict[str, dict[str, Any]] = {}

    async def of(self, given: str, world: World | None) -> dict[str, Any]:
        """Return ``name``, ``version`` and ``digest``, and the ``source`` of a project on this machine.

        The digest is that of the published bundle, or of the one that `aenv push` would publish. A single file has
        none.
        """
        name, _, version = given.partition("@")
        info: dict[str, Any] = {"name": name, "version": version or None}
        instance = getattr(world, "_instance", None)
        env, digest = getattr(instance, "env", None), getattr(instance, "digest", None)
        if env is not None:
            info |= {"name": env.name, "version": env.version or info["version"]}
        if digest:
            info["digest"] = digest
        if world is None or world.env_name == given:  # a name, and not a path
            return info
        if given not in self._local:
            self._local[given] = await asyncio.to_thread(_files_of, Path(given).expanduser())
        return info | self._local[given]


def _files_of(path: Path) -> dict[str, Any]:
    from aenv.project.bundles.packing import pack  # as slow to import as all of this package

    if not path.exists():
        return {}
    found: dict[str, Any] = {"source": str(path.resolve())}
    if path.is_dir():
        try:
            found["digest"] = pack(path).bundle.digest()
        except (AEnvError, OSError):
            return found
    return found


async def usage_of(world: World) -> dict[str, Any] | None:
    """Return what an instance has used, if its platform tells."""
    if not isinstance(world, Environment):
        return None
    try:
        used = (await world.get_env_info()).get("usage")
    except AEnvError:
        return None
    if not used:
        return None
    return {"cpu_seconds": used.get("cpu_nanoseconds", 0) / 1e9, "memory_bytes": used.get("memory_bytes")}
