"""HTTP routes of rollouts: start one and follow it as server-sent events, list, show and cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial

from pydantic_core import to_json

from aenv.errors import NotFound
from aenv.http.guard import bearer_token
from aenv.http.messages import Answer, Message, Receive, Scope, Send, Stream
from aenv.platform.gateway.peers import Peers
from aenv.platform.request_context import RequestContext, RouteEntry, body, envelope, number, ok
from aenv.platform.rollouts.rollout_jobs import RolloutJob, RolloutJobs
from aenv.rollout import EpisodeResult
from aenv.schema import paths
from aenv.schema.rollouts import RolloutRequest, ServedEpisode

PIECE = 1 << 20
"""Bytes of events that are read at a time."""


def rollout_routes(jobs: RolloutJobs, peers: Peers | None = None) -> list[RouteEntry]:
    """Return the routes. ``peers``: other servers, one of which may already run a rollout."""
    routes = _Routes(jobs, peers)
    base, one = paths.ROLLOUTS, f"{paths.ROLLOUTS}/{{name}}"
    return [
        ("POST", base, "rollout-create", routes.create),
        ("GET", base, "rollout-list", routes.list),
        ("GET", f"{one}/stream", "rollout-get", routes.stream),
        ("GET", f"{one}/episodes/{{episode}}", "rollout-get", routes.episode),
        ("GET", one, "rollout-get", routes.get),
        ("DELETE", one, "rollout-delete", routes.delete),
    ]


class _Routes:
    def __init__(self, jobs: RolloutJobs, peers: Peers | None) -> None:
        self._jobs = jobs
        self._peers = peers

    async def create(self, context: RequestContext) -> Answer:
        request = body(RolloutRequest, context.request)
        if self._peers is not None and request.request_id:
            claimed = await self._peers.claim(context.request, context.caller, f"rollout {request.request_id}")
            if claimed is not None:
                return claimed
        if self._jobs.archiver is not None:
            await self._jobs.archiver.archive.check_quota(context.caller.name)
        job = self._jobs.start(request, context.caller, bearer_token(context.request), len(context.request.body))
        if context.one("stream") in ("false", "0"):
            return ok(job.info())
        return self._followed(job, context, trace=request.trace)

    async def stream(self, context: RequestContext) -> Answer:
        job = self._jobs.get(context.name, context.caller)
        return self._followed(job, context, trace=context.one("trace") not in ("false", "0"))

    async def get(self, context: RequestContext) -> Answer:
        return ok(self._jobs.get(context.name, context.caller).info())

    async def list(self, context: RequestContext) -> Answer:
        return ok([job.info() for job in self._jobs.of(context.caller)])

    async def delete(self, context: RequestContext) -> Answer:
        job = self._jobs.get(context.name, context.caller)
        await job.cancel()
        return ok(job.info())

    async def episode(self, context: RequestContext) -> Answer:
        job = self._jobs.get(context.name, context.caller)
        wanted = context.request.path.rpartition("/")[2]
        for place, result in enumerate(job.results):
            if result.episode == wanted:
                return Stream(_OneEpisode(self.episode_parts(job, place, result, trace=True)))
        raise NotFound(f"rollout {job.id} has no finished episode {wanted!r}")

    def _followed(self, job: RolloutJob, context: RequestContext, *, trace: bool) -> Stream:
        last = context.request.header(b"last-event-id").decode("latin-1")
        after = _position(job, last)
        if after is None:
            after = number("after", context.one("after")) or 0
        return Stream(_EpisodeStream(self, job, after, trace))

    def _head(self, job: RolloutJob, number: int, result: EpisodeResult, *, trace: bool) -> bytes:
        """Return the JSON of a finished episode, up to its events where these follow."""
        if number in job.large:
            result = replace(result, reward=self._jobs.store.episode(result.episode).reward)
        served = ServedEpisode(number=number, **result.as_json()).model_dump(exclude={"events"} if trace else None)
        return to_json(served)[:-1] + b',"events":[' if trace else to_json(served)

    async def episode_parts(
        self, job: RolloutJob, number: int, result: EpisodeResult, *, trace: bool
    ) -> AsyncIterator[bytes]:
        """Yield a finished episode as JSON, in pieces: an environment decides how long its events are."""
        trace = trace and bool(result.episode)
        yield await asyncio.to_thread(partial(self._head, job, number, result, trace=trace))
        if not trace:
            return
        lines, separator = self._jobs.store.lines(result.episode), b""
        while piece := await asyncio.to_thread(_some, lines):
            yield separator + piece
            separator = b","
        yield b"]}"


def _some(lines: Iterator[bytes]) -> bytes:
    """Return the next events as elements of a JSON list, some `PIECE` bytes; empty at the end."""
    found, size = [], 0
    for line in lines:
        found.append(line)
        size += len(line)
        if size >= PIECE:
            break
    return b",".join(found)


class _OneEpisode:
    """An episode in the envelope of the platform's answers."""

    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        begin, end = to_json(envelope(None)).split(b"null")
        await _EpisodeStream.send_part(send, begin)
        async for part in self._parts:
            await _EpisodeStream.send_part(send, part)
        await send({"type": "http.response.body", "body": end, "more_body": False})


def _position(job: RolloutJob, last_id: str) -> int | None:
    """Return the number of the first result after an event; all, if a platform has numbered it that has restarted."""
    numbering, _, place = last_id.rpartition(".")
    if not (place.isascii() and place.isdigit() and len(place) < 10):
        return None
    return int(place) + 1 if numbering in ("", job.numbering) else 0


class _EpisodeStream:
    """Server-sent events: ``episode`` for each, then ``end``."""

    def __init__(self, routes: _Routes, job: RolloutJob, after: int, trace: bool) -> None:
        self._routes, self._job, self._after, self._trace = routes, job, after, trace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        gone = asyncio.ensure_future(_disconnected(receive))
        sending = asyncio.ensure_future(self._send(send))
        try:
            await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in (gone, sending):
                task.cancel()
            await asyncio.wait({gone, sending})

    async def _send(self, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-store"),
            (b"aenv-rollout", self._job.id.encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await self.send_part(send, b": rollout %s\n\n" % self._job.id.encode())
        async for found in self._job.follow(self._after):
            if found is None:
                await self.send_part(send, b": still running\n\n")
                continue
            place, result = found
            id = f"{self._job.numbering}.{place}".encode()
            await self.send_part(send, b"event: episode\nid: %s\ndata: " % id)
            async for part in self._routes.episode_parts(self._job, place, result, trace=self._trace):
                await self.send_part(send, part)
            await self.send_part(send, b"\n\n")
        end = b"" if self._job.interrupted else b"event: end\ndata: %s\n\n" % to_json(self._job.info())
        await send({"type": "http.response.body", "body": end, "more_body": False})

    @staticmethod
    async def send_part(send: Send, data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})


async def _disconnected(receive: Receive) -> None:
    message: Message = {}
    while message.get("type") != "http.disconnect":
        message = await receive()
