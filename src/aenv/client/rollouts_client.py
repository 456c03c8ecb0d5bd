"""Client of a platform's rollouts: start one, follow its episodes, cancel it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from aenv.client.backoff import backoff
from aenv.client.platform_requests import PlatformRequests
from aenv.errors import AEnvError, NetworkError, Unavailable, from_answer
from aenv.http.client import ConnectFailed, ConnectionLost
from aenv.http.messages import MAX_ANSWER
from aenv.http.relay import Relay
from aenv.http.url import Planes
from aenv.schema import paths
from aenv.schema.rollouts import RolloutInfo, RolloutRequest, ServedEpisode

ATTEMPTS = 8
"""Attempts to continue a stream that broke, without an episode in between."""


class _StreamEvent(NamedTuple):
    name: str
    data: Any
    id: str = ""


class RolloutsClient:
    """Rollouts that a platform runs; `ApiClient.rollouts`.

    Example:
        ```python
        async for episode in client.rollouts.run(environment="shop@1.0.0", model=model, samples=8):
            print(episode.task, episode.outcome, episode.reward)
        ```
    """

    def __init__(self, api: PlatformRequests) -> None:
        self._api = api

    async def run(self, request: RolloutRequest | None = None, /, **fields: Any) -> AsyncGenerator[ServedEpisode, None]:
        """Run a rollout, and yield its episodes as they end. A broken connection is continued, and repeats nothing.

        Args:
            request: The request; or its fields by name, see `RolloutRequest`.
            **fields: Fields of the request.

        Raises:
            AEnvError: the platform refuses the request, or the rollout failed or was cancelled.
        """
        given = request or RolloutRequest.model_validate(fields)
        if not given.request_id:
            given = given.model_copy(update={"request_id": str(uuid.uuid4())})
        last, failures = "", 0
        seen: set[tuple[str, int]] = set()
        while True:
            try:
                async with aclosing(self._events("POST", paths.ROLLOUTS, given, last)) as events:
                    async for event in events:
                        if event.name == "episode":
                            episode = ServedEpisode.model_validate(event.data)
                            last, failures = event.id, 0
                            sample = (episode.task, episode.sample)
                            if sample not in seen:  # a platform that has restarted sends all again
                                seen.add(sample)
                                yield episode
                        elif event.name == "end":
                            _raise_failure(RolloutInfo.model_validate(event.data), cancelled=True)
                            return
                raise ConnectionLost("the stream of the rollout ended before the rollout did")
            except (ConnectFailed, ConnectionLost, Unavailable) as error:
                failures += 1
                if failures >= ATTEMPTS:
                    raise NetworkError(
                        f"the platform at {self._api.base_url} does not answer: {error.message}"
                    ) from error
                await asyncio.sleep(backoff(failures - 1, first=0.2, longest=10.0))

    async def start(self, request: RolloutRequest | None = None, /, **fields: Any) -> RolloutInfo:
        """Start a rollout that goes on by itself, and return its state."""
        given = request or RolloutRequest.model_validate({"detached": True, **fields})
        async with aclosing(self._events("POST", f"{paths.ROLLOUTS}?stream=false", given)) as events:
            return RolloutInfo.model_validate((await anext(events)).data)

    async def list(self) -> list[RolloutInfo]:
        """Return the caller's rollouts, the newest first."""
        return [RolloutInfo.model_validate(each) for each in await self._api.data("GET", paths.ROLLOUTS)]

    async def get(self, id: str) -> RolloutInfo:
        """Return the state of a rollout."""
        return RolloutInfo.model_validate(await self._api.data("GET", f"{paths.ROLLOUTS}/{id}"))

    async def episode(self, id: str, episode: str) -> ServedEpisode:
        """Return a finished episode of a rollout with its events."""
        return ServedEpisode.model_validate(await self._api.data("GET", f"{paths.ROLLOUTS}/{id}/episodes/{episode}"))

    async def follow(self, id: str, after: int = 0, *, trace: bool = True) -> AsyncGenerator[ServedEpisode, None]:
        """Yield the episodes of a rollout from number ``after`` on, until it ends."""
        path = f"{paths.ROLLOUTS}/{id}/stream?after={after}&trace={'true' if trace else 'false'}"
        async with aclosing(self._events("GET", path)) as events:
            async for event in events:
                if event.name == "episode":
                    yield ServedEpisode.model_validate(event.data)
                elif event.name == "end":
                    _raise_failure(RolloutInfo.model_validate(event.data))
                    return
        raise ConnectionLost("the stream of the rollout ended before the rollout did")

    async def cancel(self, id: str) -> RolloutInfo:
        """Cancel a rollout. Its finished episodes stay."""
        return RolloutInfo.model_validate(await self._api.data("DELETE", f"{paths.ROLLOUTS}/{id}"))

    async def _events(
        self, method: str, path: str, request: RolloutRequest | None = None, last: str = ""
    ) -> AsyncGenerator[_StreamEvent, None]:
        """Yield server-sent events after the one with the id ``last``; of a plain answer, its data."""
        url = Planes.parse(self._api.base_url).control
        token = f"authorization: Bearer {self._api.api_key}\r\n" if self._api.api_key else ""
        head = f"{method} {url.prefix}{path} HTTP/1.1\r\nhost: {url.authority}\r\n{token}accept: text/event-stream\r\n"
        head += f"last-event-id: {last}\r\n" if last else ""
        body = b"" if request is None else to_json(request, exclude_none=True)
        relay = Relay(url)
        try:
            answer = await relay.send(f"{head}content-type: application/json\r\n".encode(), body)
            if not dict(answer.headers).get(b"content-type", b"").startswith(b"text/event-stream"):
                said = from_json(await answer.read(MAX_ANSWER))
                if answer.status != 200:
                    raise from_answer(answer.status, said)
                yield _StreamEvent("", said["data"])
                return
            async with aclosing(answer.chunks()) as chunks, aclosing(_parsed(chunks)) as events:
                async for event in events:
                    yield event
        finally:
            relay.close()


async def _parsed(chunks: AsyncIterator[bytes]) -> AsyncGenerator[_StreamEvent, None]:
    held = bytearray()
    async for chunk in chunks:
        start = max(0, len(held) - 1)
        held += chunk
        while (end := held.find(b"\n\n", start)) >= 0:
            block = bytes(held[:end])
            del held[: end + 2]
            start = 0
            name, id, data = "", "", b""
            for line in block.split(b"\n"):
                if line.startswith(b"event: "):
                    name = line[7:].decode()
                elif line.startswith(b"id: "):
                    id = line[4:].decode()
                elif line.startswith(b"data: "):
                    data = line[6:]
            if data:
                yield _StreamEvent(name, from_json(data), id)


def _raise_failure(info: RolloutInfo, *, cancelled: bool = False) -> None:
    """Raise if the rollout failed; with ``cancelled``, also if it ended before all of its episodes did."""
    if info.state == "failed":
        raise AEnvError(f"rollout {info.id} failed: {info.error}")
    if cancelled and info.state == "cancelled":
        raise AEnvError(f"rollout {info.id} was cancelled after {info.done} of {info.total} episodes")
