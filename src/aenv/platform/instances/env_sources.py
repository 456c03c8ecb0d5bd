"""Locate the project to create an instance of: at a path, or in a hub.

A project from a hub is unpacked once into the user's cache, under its digest, and runs from there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from aenv.errors import EnvironmentTimeoutError, Forbidden, InvalidArguments, NetworkError, NotFound, Unavailable
from aenv.platform.access.platform_tokens import OWNER, Caller
from aenv.project.fetch import cached
from aenv.project.locate import Located, locate
from aenv.schema.envhub import Hub
from aenv.schema.instances import EnvInstanceCreateRequest, HubAccess
from aenv.schema.ref import EnvRef
from aenv.tracing.logging import getLogger

log = getLogger("sources")

CACHE_SECONDS = 2.0
"""Reuse a hub lookup for this many seconds: a group of instances asks the hub once."""

FALLBACK_ENTRIES = 1000
"""Resolved names to remember, for when the hub does not answer."""

OpenHub = Callable[[HubAccess], Hub]


class Sources:
    """Locates projects by path and by name."""

    def __init__(self, open_hub: OpenHub | None = None, only_hub: HubAccess | None = None) -> None:
        """``only_hub``: take projects from this hub alone, and from no path, since callers do not own this machine."""
        self._open_hub = open_hub
        self._only_hub = only_hub
        self._last_resolved: dict[tuple[HubAccess, str, str], Path] = {}
        self._hubs: dict[HubAccess, Hub] = {}
        self._lookups: dict[tuple[HubAccess, str, str], tuple[float, asyncio.Task[Path]]] = {}

    async def find(self, request: EnvInstanceCreateRequest, caller: Caller = OWNER) -> Located:
        """Return the project to create an instance of.

        Raises:
            NotFound: the environment does not exist, or the caller may not read it in the hub.
        """
        if self._only_hub is not None:
            if request.source is not None or request.hub is not None or request.fetching is not None:
                raise Forbidden("this platform takes environments only from its own hub; push yours there: aenv push")
            reader = "" if caller.role == "admin" else caller.name
            return locate(await self._from_hub(self._only_hub, request.envName, reader))
        if request.source is not None:
            return locate(Path(request.source))
        if self._open_hub is None or request.hub is None:
            raise NotFound(f"no environment '{request.envName}' here; {_ADVICE}")
        return locate(await self._from_hub(request.hub, request.envName))

    def forget(self) -> None:
        """Drop cached lookups, after a change in the hub: the next create asks it again."""
        self._lookups.clear()

    async def close(self) -> None:
        """Close the connections to hubs."""
        for _, task in self._lookups.values():
            task.cancel()
        for hub in self._hubs.values():
            await hub.close()
        self._hubs.clear()

    async def _from_hub(self, access: HubAccess, name: str, reader: str = "") -> Path:
        """``reader``: the user that must have read access; empty: the hub access itself is enough."""
        key, now = (access, name, reader), time.monotonic()
        lookup = self._lookups.get(key)
        if lookup is None or (
            lookup[1].done() and (now - lookup[0] > CACHE_SECONDS or lookup[1].exception() is not None)
        ):
            self._lookups = {k: v for k, v in self._lookups.items() if now - v[0] <= CACHE_SECONDS or not v[1].done()}
            lookup = self._lookups[key] = (now, asyncio.create_task(self._fetch(access, name, reader)))
        try:
            path = await asyncio.shield(lookup[1])
        except (NetworkError, Unavailable, EnvironmentTimeoutError) as error:
            if key not in self._last_resolved:
                raise
            log.warning("the hub does not answer (%s); using the last known version of %s", error.message, name)
            return self._last_resolved[key]
        except NotFound:  # such as a grant that was revoked: not to be used when the hub does not answer
            self._last_resolved.pop(key, None)
            raise
        if len(self._last_resolved) >= FALLBACK_ENTRIES and key not in self._last_resolved:
            del self._last_resolved[next(iter(self._last_resolved))]
        self._last_resolved[key] = path
        return path

    async def _fetch(self, access: HubAccess, name: str, reader: str) -> Path:
        try:
            ref = EnvRef.parse(name)
        except ValueError as error:
            raise InvalidArguments(str(error)) from None
        hub = self._hubs.get(access)
        if hub is None:
            assert self._open_hub is not None
            hub = self._hubs[access] = self._open_hub(access)
        if reader:
            hub = hub.on_behalf_of(reader)
        try:
            version = await hub.get(ref.name, ref.want)
        except NotFound as error:
            advice = _ADVICE if self._only_hub is None else _PLATFORM_ADVICE
            raise NotFound(f"{error.message}; {advice}", details=error.details) from None
        for word, reason in (("deprecated", version.deprecated), ("yanked", version.yanked)):
            if reason is not None:
                log.warning("%s@%s is %s: %s", version.name, version.version, word, reason)
        return await cached(hub, version, Path(access.cache))


_ADVICE = (
    "give the path of a project, as in Environment('./my-env'), run where its config.json is, or publish it with "
    "'aenv push'"
)
_PLATFORM_ADVICE = "publish it in the hub of this platform with 'aenv push', or ask its owner for access"
