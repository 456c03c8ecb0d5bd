"""HTTP routes of trajectories: list, show, upload and delete episodes, and read their events page by page."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

from pydantic_core import to_json

from aenv.errors import InvalidArguments, NotFound
from aenv.http.messages import Answer, Request, Response
from aenv.platform.access.platform_tokens import Caller
from aenv.platform.request_context import RequestContext, RouteEntry, body, envelope, number, ok
from aenv.platform.trajectories.archive_index import EpisodeSelection, cursor_of
from aenv.platform.trajectories.episode_archive import EpisodeArchive
from aenv.platform.trajectories.rollout_archiver import RolloutArchiver
from aenv.schema import paths
from aenv.schema.trajectories import (
    EPISODE_ID,
    EPISODES_PER_PAGE,
    EVENTS_PER_PAGE,
    EpisodePage,
    PruneRequest,
    RunUpload,
    StoredEpisode,
)

UPLOAD = "trajectory-put"
"""Action of the route whose body is read while it arrives."""
_ID = re.compile(EPISODE_ID)
NEWEST = "999999999999999:~"
"""Cursor before the newest archived episode."""
_STATES = ("running", "unfinished", "ended")
_OUTCOMES = ("ok", "policy", "env", "infra", "timeout", "user", "cancelled")


def trajectory_routes(archive: EpisodeArchive, archiver: RolloutArchiver) -> list[RouteEntry]:
    """Return the routes."""
    routes = _Routes(archive, archiver)
    base, one, runs = paths.TRAJECTORIES, f"{paths.TRAJECTORIES}/{{name}}", paths.TRAJECTORY_RUNS
    return [
        ("GET", base, "trajectory-list", routes.list),
        ("POST", paths.TRAJECTORIES_PRUNE, "trajectory-delete", routes.prune),
        ("GET", f"{one}/events", "trajectory-get", routes.events),
        ("GET", one, "trajectory-get", routes.get),
        ("PUT", one, UPLOAD, routes.put),
        ("DELETE", one, "trajectory-delete", routes.delete),
        ("GET", runs, "trajectory-list", routes.runs),
        ("POST", runs, "trajectory-put-run", routes.put_run),
    ]


def is_upload(request: Request) -> bool:
    """Return whether a request uploads an episode, so that its body may be long."""
    path = request.path
    return request.method == "PUT" and path.startswith(f"{paths.TRAJECTORIES}/") and path.count("/") == 2


class _Routes:
    def __init__(self, archive: EpisodeArchive, archiver: RolloutArchiver) -> None:
        self._archive = archive
        self._archiver = archiver

    async def list(self, context: RequestContext) -> Answer:
        where, limit = _selection(context), _limit(context, EPISODES_PER_PAGE, 100)
        newest_first = _flag(context, "newest_first") is True
        after = context.one("after")
        if after is not None and ":" not in after:
            after = cursor_of(await self._found(after, context))
        recording: list[StoredEpisode] = []
        if newest_first and after is None and where.state in (None, "running"):
            recording = await asyncio.to_thread(self._archiver.recording, where, limit)
        page = EpisodePage(next=NEWEST if where.state is None else None)
        if where.state != "running" and len(recording) < limit:
            page = await self._archive.page(where, after=after, limit=limit - len(recording), newest_first=newest_first)
        known = {each.id for each in page.items}
        items = [each for each in recording if each.id not in known] + page.items
        return ok(EpisodePage(items=items, next=page.next))

    async def get(self, context: RequestContext) -> Answer:
        return ok(await self._found(context.name, context))

    async def events(self, context: RequestContext) -> Answer:
        start, limit = number("start", context.one("start")) or 0, _limit(context, EVENTS_PER_PAGE, 100)
        episode = await self._found(context.name, context)
        if episode.digest:
            page = await self._archive.events(episode, start, limit)
        else:
            page = await asyncio.to_thread(self._archiver.events, episode.id, start, limit)
        data = await asyncio.to_thread(lambda: to_json(envelope(page)))
        return Response(200, data)

    async def put(self, context: RequestContext) -> Answer:
        if not _ID.match(context.name):
            raise InvalidArguments("invalid id of an episode; expected up to 128 letters, digits, '.', '_' and '-'")
        encoding = context.request.header(b"content-encoding").decode("latin-1")
        if encoding not in ("", "identity", "gzip"):
            raise InvalidArguments(f"invalid content-encoding {encoding!r}; expected gzip")
        episode, _ = await self._archive.put(
            context.caller.name, context.name, _body(context.request), compressed=encoding == "gzip"
        )
        return ok(episode)

    async def delete(self, context: RequestContext) -> Answer:
        episode = await self._archive.get(_visible(context.caller), context.name)
        await self._archive.delete(episode.owner, [episode])
        return ok(episode)

    async def prune(self, context: RequestContext) -> Answer:
        wanted = body(PruneRequest, context.request)
        owner = wanted.owner or context.caller.name
        if not context.caller.may_see(owner):
            raise NotFound(f"there are no trajectories of {owner!r:.120} that you may see")
        where = EpisodeSelection(owner, wanted.run, wanted.task, wanted.outcome)
        return ok(await self._archive.prune(where, before=wanted.before, dry_run=wanted.dry_run, after=wanted.after))

    async def runs(self, context: RequestContext) -> Answer:
        owner, limit = _owner(context), _limit(context, EPISODES_PER_PAGE, 100)
        return ok(await self._archive.runs(owner, id=context.one("run"), after=context.one("after"), limit=limit))

    async def put_run(self, context: RequestContext) -> Answer:
        return ok(await self._archive.put_run(context.caller.name, body(RunUpload, context.request)))

    async def _found(self, id: str, context: RequestContext) -> StoredEpisode:
        """Return an archived episode, or one that a rollout of this server is recording."""
        owner = _owner(context)
        try:
            return await self._archive.get(owner, id)
        except NotFound:
            found = await asyncio.to_thread(self._archiver.find, owner, id)
            if found is None or not await self._archive.missing([found]):  # deleted, and still in this server's store
                raise
            return found


async def _body(request: Request) -> AsyncIterator[bytes]:
    if request.stream is None:
        yield request.body
        return
    async for data in request.stream:
        yield data


def _visible(caller: Caller) -> str | None:
    """Return the only user whose episodes a caller may see; None: those of all."""
    return None if caller.role == "admin" else caller.name


def _owner(context: RequestContext) -> str | None:
    """Return the user whose episodes are asked for; None: those of all."""
    asked = context.one("owner")
    if asked is None:
        return _visible(context.caller)
    if not context.caller.may_see(asked):
        raise NotFound(f"there are no trajectories of {asked!r:.120} that you may see")
    return asked


def _selection(context: RequestContext) -> EpisodeSelection:
    return EpisodeSelection(
        owner=_owner(context),
        run=context.one("run") or None,
        task=context.one("task") or None,
        outcome=_one_of(context, "outcome", _OUTCOMES),
        state=_one_of(context, "state", _STATES),
        final=_flag(context, "final"),
    )


def _one_of(context: RequestContext, name: str, known: tuple[str, ...]) -> str | None:
    text = context.one(name) or None
    if text is not None and text not in known:
        raise InvalidArguments(f"invalid {name} {text!r:.100}; expected one of {', '.join(known)}")
    return text


def _flag(context: RequestContext, name: str) -> bool | None:
    text = context.one(name)
    if text is None:
        return None
    if text not in ("true", "false"):
        raise InvalidArguments(f"invalid {name} {text!r:.100}; expected true or false")
    return text == "true"


def _limit(context: RequestContext, most: int, default: int) -> int:
    limit = number("limit", context.one("limit"))
    if limit is None:
        return default
    if not 1 <= limit <= most:
        raise InvalidArguments(f"invalid limit {limit}; expected 1 to {most}")
    return limit
