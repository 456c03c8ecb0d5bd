"""Several instances of one environment at once: a group of rollouts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aenv.errors import InvalidUse
from aenv.schema.instances import EnvInstance
from aenv.sdk.environment import Environment
from aenv.sdk.placement import OnPlatform


class Batch:
    """What ``Environment.batch`` gives: ``async with`` makes and releases them, ``async for`` gives them as they come.

    One that could not be made raises when its turn comes; the others go on.
    """

    def __init__(self, environments: list[Environment]) -> None:
        self.environments = environments
        self._starting: list[asyncio.Task[Environment]] = []
        self._released = False

    async def __aenter__(self) -> Batch:
        await self._begin()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.release()

    async def __aiter__(self) -> AsyncIterator[Environment]:
        await self._begin()
        for ready in asyncio.as_completed(self._starting):
            yield await ready

    async def all(self) -> list[Environment]:
        """All of them, once the last is ready."""
        await self._begin()
        return await asyncio.gather(*self._starting)

    async def release(self) -> None:
        """End all of them."""
        self._released = True
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(env.release() for env in self.environments))

    async def _begin(self) -> None:
        if self._released:
            raise InvalidUse("this batch was released; make another one")
        if self._starting or not self.environments:
            return
        first = self.environments[0]
        placement = first._placement
        if isinstance(placement, OnPlatform) and placement.is_local:
            created = await placement.create_many(first._wish(), len(self.environments))
            pairs = zip(self.environments, created, strict=True)
            self._starting = [asyncio.create_task(_take(env, instance)) for env, instance in pairs]
        else:
            self._starting = [asyncio.create_task(_initialize(env)) for env in self.environments]


async def _initialize(env: Environment) -> Environment:
    await env.initialize()
    return env


async def _take(env: Environment, instance: EnvInstance) -> Environment:
    await env._take(instance)
    return env
