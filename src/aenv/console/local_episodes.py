"""Episodes of the local store in the form in which a platform serves them, to be read only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, unquote

from pydantic_core import to_json

from aenv.errors import InvalidArguments, NotFound
from aenv.http.messages import Request, Response
from aenv.schema import paths
from aenv.schema.trajectories import EPISODES_PER_PAGE, EVENTS_PER_PAGE, EpisodePage, EventPage, RunPage, StoredRun
from aenv.trajectory.events import EpisodeSummary
from aenv.trajectory.reader import EpisodeReader

PAGE_BYTES = 4 << 20
"""Size at which a page of events ends."""


def is_episode_path(path: str) -> bool:
    """Return whether a path is one of episodes and runs."""
    return path in (paths.TRAJECTORIES, paths.TRAJECTORY_RUNS) or path.startswith(f"{paths.TRAJECTORIES}/")


async def episode_answer(store: EpisodeReader, request: Request) -> Response:
    """Answer a request for episodes.

    Raises:
        NotFound: there is no such episode, or the request is not one for reading.
        InvalidArguments: a parameter of the query is malformed.
    """
    if request.method != "GET":
        raise NotFound("episodes of the local store can only be read here; use: aenv trajectory")
    query = {name: values[0] for name, values in parse_qs(request.query.decode("latin-1")).items()}
    data = await asyncio.to_thread(_read, store, request.path, query)
    return Response(200, to_json({"success": True, "code": 0, "message": "", "data": data}))


def _read(store: EpisodeReader, path: str, query: dict[str, str]) -> Any:
    if path == paths.TRAJECTORY_RUNS:
        return _runs(store, query)
    if path == paths.TRAJECTORIES:
        return _page(store, query)
    name, _, rest = path.removeprefix(f"{paths.TRAJECTORIES}/").partition("/")
    summary = store.episode(unquote(name))
    if rest == "events":
        return _events(store, summary.id, _number(query, "start", 0), _number(query, "limit", 100, EVENTS_PER_PAGE))
    if rest:
        raise NotFound(f"nothing at {path}")
    return summary.as_json()


def _page(store: EpisodeReader, query: dict[str, str]) -> EpisodePage:
    limit = _number(query, "limit", 100, EPISODES_PER_PAGE)
    found = store.episodes(
        *(query.get(name) or None for name in ("run", "task", "outcome")),
        state=query.get("state") or None,
        final={"true": True, "false": False}.get(query.get("final", "")),
        after=query.get("after") or None,
        limit=limit,
        newest_first=query.get("newest_first") == "true",
    )
    return _as_page(found, limit)


def _as_page(found: list[EpisodeSummary], limit: int) -> EpisodePage:
    items = [each.as_json() for each in found]
    return EpisodePage.model_validate({"items": items, "next": found[-1].id if len(found) == limit else None})


def _runs(store: EpisodeReader, query: dict[str, str]) -> RunPage:
    limit = _number(query, "limit", 100, EPISODES_PER_PAGE)
    found = [store.run(query["run"])] if query.get("run") else store.runs(after=query.get("after"), limit=limit)
    items = [StoredRun.model_validate({**run.as_json(), "episodes": store.counts_of(run)}) for run in found]
    return RunPage(items=items, next=items[-1].id if len(items) == limit and not query.get("run") else None)


def _events(store: EpisodeReader, name: str, start: int, limit: int) -> EventPage:
    items: list[dict[str, Any]] = []
    size = 0
    for event in store.events(name, start, limit):
        size += len(to_json(event))
        if items and size > PAGE_BYTES:
            break
        items.append(event)
    cut = len(items) == limit or size > PAGE_BYTES
    return EventPage(items=items, next=start + len(items) if cut else None)


def _number(query: dict[str, str], name: str, default: int, most: int = 1 << 40) -> int:
    text = query.get(name, "")
    read: Callable[[str], int] = int
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 12 and read(text) <= most):
        raise InvalidArguments(f"invalid {name} {text!r:.50}; expected a number of at most {most}")
    return read(text)
