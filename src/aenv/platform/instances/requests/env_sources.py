"""Locate the project to create an instance of: at a path, or in a hub.

A project from a hub is unpacked once into the user's cache, under its digest, and runs from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from aenv.errors import AEnvError, Forbidden, InvalidArguments, NetworkError, NotFound, Unauthorized, Unavailable
from aenv.platform.access.platform_tokens import OWNER, Caller
from aenv.platform.instances.requests.resolved_versions import Resolved, ResolvedVersions, newest
from aenv.project.fetch import cached
from aenv.project.locate import Located, locate
from aenv.schema.envhub import Hub
from aenv.schema.instances import EnvInstanceCreateRequest, HubAccess
from aenv.schema.ref import EnvRef
from aenv.tracing.logging import getLogger

log = getLogger("sources")

CACHE_SECONDS = 2.0
"""Reuse a hub lookup for this many seconds: a group of instances asks the hub once."""

HUB_PATIENCE = 1.0
"""Seconds to wait for a hub before an exact version that is cached is used without it."""
RANGE_PATIENCE = 2.0
"""Seconds to wait for a name or a range before a cached version is used: the hub may know a newer one."""
DOWN_SECONDS = 10.0
"""Seconds after an unanswered lookup in which cached versions are used without waiting for the hub."""

FALLBACK_ENTRIES = 1000
"""Resolved names to remember, for when the hub does not answer."""

OpenHub = Callable[[HubAccess], Hub]


class Sources:
    """Locates projects by path and by name."""

    def __init__(self, open_hub: OpenHub | None = None, only_hub: HubAccess | None = None) -> None:
        """``only_hub``: take projects from this hub alone, and from no path, since callers do not own this machine."""
        self._open_hub = open_hub
        self._only_hub = only_hub
        self._last_resolved: dict[tuple[HubAccess, str, str], Resolved] = {}
        self._on_disk = ResolvedVersions()
        self._down: dict[HubAccess, float] = {}
        """Monotonic time until which a hub that did not answer is not waited for."""
        self._hubs: dict[HubAccess, Hub] = {}
        self._lookups: dict[tuple[HubAccess, str, str], _Lookup] = {}

    async def find(self, request: EnvInstanceCreateRequest, caller: Caller = OWNER) -> Located:
        """Return the project to create an instance of.

        Raises:
            NotFound: the environment does not exist, or the caller may not read it in the hub.
        """
        if self._only_hub is not None:
            if request.source is not None or request.hub is not None or request.fetching is not None:
                raise Forbidden("this platform takes environments only from its own hub; push yours there: aenv push")
            reader = "" if caller.role == "admin" else caller.name
            return _located(await self._from_hub(self._only_hub, request.envName, reader))
        if request.source is not None:
            return locate(Path(request.source))
        if self._open_hub is None or request.hub is None:
            raise NotFound(f"no environment '{request.envName}' here; {_ADVICE}")
        return _located(await self._from_hub(request.hub, request.envName))

    def forget(self) -> None:
        """Drop cached lookups, after a change in the hub: the next create asks it again."""
        self._lookups.clear()

    async def close(self) -> None:
        """Close the connections to hubs."""
        for lookup in self._lookups.values():
            lookup.task.cancel()
        for hub in self._hubs.values():
            await hub.close()
        self._hubs.clear()

    async def _from_hub(self, access: HubAccess, name: str, reader: str = "") -> Resolved:
        """``reader``: the user that must have read access; empty: the hub access itself is enough."""
        key, now = (access, name, reader), time.monotonic()
        lookup = self._lookups.get(key)
        if lookup is None or lookup.is_over(now):
            self._lookups = {
                k: v for k, v in self._lookups.items() if now - v.began <= CACHE_SECONDS or not v.is_over(now)
            }
            answered = asyncio.Event()
            task = asyncio.create_task(self._fetch(access, name, reader, answered))
            lookup = self._lookups[key] = _Lookup(now, task, answered)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may come too late
        try:
            found = lookup.task.result() if lookup.task.done() else await self._within_patience(key, lookup)
        except (NetworkError, Unavailable, TimeoutError) as error:  # EnvironmentTimeoutError is a TimeoutError
            known = self._known(key)
            if known is None:
                if isinstance(error, AEnvError):
                    error.details.setdefault("hub", access.url)
                raise
            self._down[access] = time.monotonic() + DOWN_SECONDS
            why = error.message if isinstance(error, AEnvError) else "no answer in time"
            log.warning("the hub does not answer (%s); using %s for %s", why, known.version or "the last version", name)
            return known if _is_exact(name) else _marked(known, name)
        except (NotFound, Unauthorized, Forbidden):  # such as a grant that was revoked: not to be used later either
            self._drop(key)
            raise
        self._down.pop(access, None)
        if len(self._last_resolved) >= FALLBACK_ENTRIES and key not in self._last_resolved:
            del self._last_resolved[next(iter(self._last_resolved))]
        if not reader and access.url and self._last_resolved.get(key) != found:
            self._on_disk.put(access, name, found)
        self._last_resolved[key] = found
        return found

    async def _within_patience(self, key: tuple[HubAccess, str, str], lookup: _Lookup) -> Resolved:
        """Wait for a lookup; if a cached version will do, until the hub should have answered.

        Once it has answered, a version that is not cached yet is waited for as long as its download takes.
        """
        access, name, _ = key
        if not access.url or self._known(key) is None:
            return await asyncio.shield(lookup.task)
        patience = HUB_PATIENCE if _is_exact(name) else RANGE_PATIENCE
        if time.monotonic() < self._down.get(access, 0.0):
            patience = 0.0
        answered = asyncio.ensure_future(lookup.answered.wait())
        try:  # asyncio.timeout needs a task, which a request begins without
            await asyncio.wait({lookup.task, answered}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        finally:
            answered.cancel()
        if not lookup.task.done() and not lookup.answered.is_set():
            raise TimeoutError
        return await asyncio.shield(lookup.task)

    def _known(self, key: tuple[HubAccess, str, str]) -> Resolved | None:
        """Return what to use without the hub: its last answer, else this version by whichever name it was resolved.

        For a range that is the newest cached version that satisfies it.
        """
        access, name, reader = key
        on_disk = not reader and bool(access.url)
        last = self._last_resolved.get(key) or (self._on_disk.get(access, name) if on_disk else None)
        try:
            ref = EnvRef.parse(name)
        except ValueError:
            return last
        if ref.range is not None:
            return newest(self._resolved(key, ref).values(), ref.range) or last
        return last or next(iter(self._resolved(key, ref).values()), None)

    def _drop(self, key: tuple[HubAccess, str, str]) -> None:
        """Forget all that was resolved for a name that the hub has refused, by whichever name."""
        access, name, reader = key
        names = {name}
        with contextlib.suppress(ValueError):
            names |= set(self._resolved(key, EnvRef.parse(name)))
        for each in names:
            self._last_resolved.pop((access, each, reader), None)
            if not reader:
                self._on_disk.drop(access, each)

    def _resolved(self, key: tuple[HubAccess, str, str], ref: EnvRef) -> dict[str, Resolved]:
        """Return cached versions that a reference may mean, by the names that they were resolved for.

        Only what the hub resolved for the same token and reader counts.
        """
        access, _, reader = key
        found = {} if reader or not access.url else dict(self._on_disk.all_of(access, ref.name))
        for (hub, other, its_reader), version in self._last_resolved.items():
            if (hub, its_reader) == (access, reader) and other.partition("@")[0] == ref.name:
                found[other] = version
        return {name: version for name, version in found.items() if version.is_meant_by(ref)}

    async def _fetch(self, access: HubAccess, name: str, reader: str, answered: asyncio.Event) -> Resolved:
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
            joined = f"{error.message} Or {advice}" if error.message.endswith("?") else f"{error.message}; {advice}"
            raise NotFound(joined, details=error.details) from None
        answered.set()
        notices = tuple(
            f"{version.name}@{version.version} is {word}" + (f": {reason}" if reason else "")
            for word, reason in (("deprecated", version.deprecated), ("yanked", version.yanked))
            if reason is not None
        )
        for notice in notices:
            log.warning("%s", notice)
        folder = await cached(hub, version, Path(access.cache))
        return Resolved(folder, version.digest, notices, version.version, version.yanked is not None)


@dataclass(frozen=True, slots=True)
class _Lookup:
    """A question to a hub that all creates of this name share."""

    began: float
    task: asyncio.Task[Resolved]
    answered: asyncio.Event
    """Set when the hub has named the version, before its files are downloaded."""

    def is_over(self, now: float) -> bool:
        """Return whether the next create has to ask again."""
        return self.task.done() and (now - self.began > CACHE_SECONDS or self.task.exception() is not None)


def _located(found: Resolved) -> Located:
    return replace(locate(found.path), digest=found.digest, notices=found.notices)


def _marked(found: Resolved, name: str) -> Resolved:
    version = found.version or "the version used last"
    notice = f"{name}: the hub does not answer; using {version}, the newest that is cached here"
    return replace(found, notices=(*found.notices, notice))


def _is_exact(name: str) -> bool:
    try:
        return EnvRef.parse(name).range is None
    except ValueError:
        return False


_ADVICE = (
    "give the path of a project, as in Environment('./my-env'), run where its config.json is, or publish it with "
    "'aenv push'"
)
_PLATFORM_ADVICE = "publish it in the hub of this platform with 'aenv push', or ask its owner for access"
