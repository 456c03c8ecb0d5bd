"""Client of the trajectories that a platform keeps: list, read, upload and delete episodes."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterable
from typing import Any
from urllib.parse import quote, urlencode

from pydantic_core import from_json

from aenv.client.backoff import backoff
from aenv.client.platform_requests import PlatformRequests
from aenv.errors import NetworkError, NotJson, RateLimited, Unavailable, from_answer
from aenv.http.client import ConnectFailed, ConnectionLost
from aenv.http.messages import MAX_ANSWER
from aenv.http.relay import Relay
from aenv.http.url import Planes
from aenv.schema import paths
from aenv.schema.trajectories import (
    EVENTS_PER_PAGE,
    EpisodePage,
    EventPage,
    PruneAnswer,
    PruneRequest,
    RunPage,
    RunUpload,
    StoredEpisode,
    StoredRun,
)

ATTEMPTS = 5
"""Attempts of an upload. Uploading an episode twice is harmless."""
CHUNK = 256 * 1024


class TrajectoriesClient:
    """Trajectories that a platform keeps; `ApiClient.trajectories`.

    Example:
        ```python
        page = await client.trajectories.list(run="run-1", outcome="ok")
        for episode in page.items:
            events = await client.trajectories.events(episode.id, limit=100)
        ```
    """

    def __init__(self, api: PlatformRequests) -> None:
        self._api = api

    async def list(self, **filters: Any) -> EpisodePage:
        """Return a page of episodes.

        Args:
            **filters: run, task, outcome, state, final, owner, newest_first, limit, and after: `next` of the previous
                page, or the id of an episode.
        """
        return EpisodePage.model_validate(await self._api.data("GET", f"{paths.TRAJECTORIES}?{_query(filters)}"))

    async def get(self, id: str) -> StoredEpisode:
        """Return an episode by its id or an unambiguous beginning of it, without its events."""
        return StoredEpisode.model_validate(await self._api.data("GET", _path(id)))

    async def events(self, id: str, start: int = 0, limit: int = EVENTS_PER_PAGE) -> EventPage:
        """Return events of an episode from number ``start`` on: at most ``limit``, and at most a few MiB."""
        query = _query({"start": start, "limit": min(limit, EVENTS_PER_PAGE)})
        return EventPage.model_validate(await self._api.data("GET", f"{_path(id)}/events?{query}"))

    async def put(self, id: str, lines: Iterable[bytes]) -> StoredEpisode:
        """Upload an episode. The same one again changes nothing.

        Args:
            id: Id of the episode.
            lines: Its events as JSON, without newlines. They are iterated again if the connection breaks.

        Raises:
            Conflict: the platform has an episode of this id with other events.
        """
        for attempt in range(ATTEMPTS):
            try:
                return await self._put(id, lines)
            except (ConnectFailed, ConnectionLost, RateLimited, Unavailable) as error:
                if attempt == ATTEMPTS - 1:
                    if isinstance(error, ConnectFailed | ConnectionLost):
                        raise NetworkError(
                            f"the platform at {self._api.base_url} does not answer: {error.message}"
                        ) from error
                    raise
                await asyncio.sleep(backoff(attempt, first=0.2, longest=5.0, asked=error.details.get("retry_after")))
        raise AssertionError("unreachable")

    async def delete(self, id: str) -> StoredEpisode:
        """Delete an episode."""
        return StoredEpisode.model_validate(await self._api.data("DELETE", _path(id)))

    async def prune(self, **fields: Any) -> PruneAnswer:
        """Delete, or count with ``dry_run``, all episodes that match the fields of `PruneRequest`."""
        count = size = 0
        after = None
        while True:
            request = PruneRequest.model_validate({**fields, "after": after})
            answer = PruneAnswer.model_validate(await self._api.data("POST", paths.TRAJECTORIES_PRUNE, request))
            count, size, after = count + answer.episodes, size + answer.bytes, answer.next
            if after is None:
                return PruneAnswer(episodes=count, bytes=size)

    async def runs(self, **filters: Any) -> RunPage:
        """Return a page of runs, newest first. Filters: run, owner, limit, after."""
        return RunPage.model_validate(await self._api.data("GET", f"{paths.TRAJECTORY_RUNS}?{_query(filters)}"))

    async def put_run(self, run: RunUpload) -> StoredRun:
        """Store a run, unless there is one of that id, and return the stored one."""
        return StoredRun.model_validate(await self._api.data("POST", paths.TRAJECTORY_RUNS, run))

    async def _put(self, id: str, lines: Iterable[bytes]) -> StoredEpisode:
        url = Planes.parse(self._api.base_url).control
        token = f"authorization: Bearer {self._api.api_key}\r\n" if self._api.api_key else ""
        head = (
            f"PUT {url.prefix}{_path(id)} HTTP/1.1\r\nhost: {url.authority}\r\n{token}"
            f"content-type: {paths.LINES}\r\ncontent-encoding: gzip\r\n"
        )
        relay = Relay(url)
        try:
            answer = await relay.send(head.encode(), _compressed(lines))
            try:
                said = from_json(await answer.read(MAX_ANSWER))
            except ValueError:
                raise NotJson(f"PUT {_path(id)}: the answer is not JSON (HTTP {answer.status})") from None
            if answer.status != 200:
                raise from_answer(answer.status, said)
            return StoredEpisode.model_validate(said["data"])
        finally:
            relay.close()


async def _compressed(lines: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Yield lines compressed, read and packed in a thread."""
    packer = zlib.compressobj(4, zlib.DEFLATED, 31)
    rest = iter(lines)

    def pack() -> tuple[bytes, bool]:
        packed: list[bytes] = []
        size = 0
        for line in rest:
            packed.append(packer.compress(line + b"\n"))
            size += len(line)
            if size > CHUNK:
                return b"".join(packed), True
        packed.append(packer.flush())
        return b"".join(packed), False

    more = True
    while more:
        data, more = await asyncio.to_thread(pack)
        if data:
            yield data


def _path(id: str) -> str:
    return f"{paths.TRAJECTORIES}/{quote(id, safe='')}"


def _query(fields: dict[str, Any]) -> str:
    given = {name: value for name, value in fields.items() if value is not None}
    return urlencode({name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items()})
