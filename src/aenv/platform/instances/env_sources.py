"""Find the project that somebody wants an instance of: where they said it lies, else in their hub.

What comes from a hub is unpacked once into the user's cache, under its digest, and runs from there.
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

FRESH = 2.0
"""Seconds for which a name stands for the same version: a group of instances asks the hub once."""

REMEMBERED = 1000
"""Names of which it is known what they stood for, for when the hub does not answer."""

OpenHub = Callable[[HubAccess], Hub]


class Sources:
    """Projects by path and by name."""

    def __init__(self, open_hub: OpenHub | None = None, only: HubAccess | None = None) -> None:
        """``only``: the one hub that counts, and no path does, since who asks is not who owns this machine."""
        self._open_hub = open_hub
        self._only = only
        self._last: dict[tuple[HubAccess, str, str], Path] = {}
        self._hubs: dict[HubAccess, Hub] = {}
        self._found: dict[tuple[HubAccess, str, str], tuple[float, asyncio.Task[Path]]] = {}

    async def find(self, wish: EnvInstanceCreateRequest, caller: Caller = OWNER) -> Located:
        """The project that an instance is wanted of.

        Raises:
            NotFound: there is no such environment, here or in the hub, or the caller may not read it there.
        """
        if self._only is not None:
            if wish.source is not None or wish.hub is not None or wish.fetching is not None:
                raise Forbidden("this platform takes environments from its own hub alone; push yours there: aenv push")
            reader = "" if caller.role == "admin" else caller.name
            return locate(await self._from_hub(self._only, wish.envName, reader))
        if wish.source is not None:
            return locate(Path(wish.source))
        if self._open_hub is None or wish.hub is None:
            raise NotFound(f"no environment '{wish.envName}' here; {_ADVICE}")
        return locate(await self._from_hub(wish.hub, wish.envName))

    async def close(self) -> None:
        """Let go of hubs."""
        for _, task in self._found.values():
            task.cancel()
        for hub in self._hubs.values():
            await hub.close()
        self._hubs.clear()

    async def _from_hub(self, access: HubAccess, name: str, reader: str = "") -> Path:
        """``reader``: the user who must be allowed to read it; empty: whoever the access is for is enough."""
        key, now = (access, name, reader), time.monotonic()
        known = self._found.get(key)
        if known is None or (known[1].done() and (now - known[0] > FRESH or known[1].exception() is not None)):
            self._found = {k: v for k, v in self._found.items() if now - v[0] <= FRESH or not v[1].done()}
            known = self._found[key] = (now, asyncio.create_task(self._get(access, name, reader)))
        try:
            path = await asyncio.shield(known[1])
        except (NetworkError, Unavailable, EnvironmentTimeoutError) as error:
            if key not in self._last:
                raise
            log.warning("the hub does not answer (%s); %s is what it was before", error.message, name)
            return self._last[key]
        if len(self._last) >= REMEMBERED and key not in self._last:
            del self._last[next(iter(self._last))]
        self._last[key] = path
        return path

    async def _get(self, access: HubAccess, name: str, reader: str) -> Path:
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
            raise NotFound(f"{error.message}; {_ADVICE}", details=error.details) from None
        for word, reason in (("deprecated", version.deprecated), ("yanked", version.yanked)):
            if reason is not None:
                log.warning("%s@%s is %s: %s", version.name, version.version, word, reason)
        return await cached(hub, version, Path(access.cache))


_ADVICE = (
    "give the path of a project, as in Environment('./my-env'), run where its config.json is, or publish it with "
    "'aenv push'"
)
