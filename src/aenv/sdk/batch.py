"""Create several instances of one environment at once, for a group of rollouts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aenv.errors import InvalidUse
from aenv.schema.instances import EnvInstance
from aenv.sdk.environment import Environment
from aenv.sdk.placement import PlatformPlacement


class Batch:
    """Several environments, created together; returned by `Environment.batch`.

    ``async with`` creates and releases them. ``async for`` yields each environment when it is ready. A failed creation
    raises when its turn comes; the others continue.
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
        """Return all environments when the last one is ready."""
        await self._begin()
        return await asyncio.gather(*self._starting)

    async def release(self) -> None:
        """Release all environments; creations in progress are cancelled."""
        self._released = True
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(env.release() for env in self.environments))

    async def _begin(self) -> None:
        if self._released:
            raise InvalidUse("this batch was released; create another one")
        if self._starting or not self.environments:
            return
        first = self.environments[0]
        placement = first._placement
        created: list[EnvInstance] = []
        if isinstance(placement, PlatformPlacement) and first.instance_id is None:
            try:
                created = await placement.create_many(first._create_request(), len(self.environments))
            except BaseException:
                await placement.disconnect()
                raise
        pairs = list(zip(self.environments, created, strict=False))
        for env, instance in pairs:
            env._instance = instance  # so that a release before its task runs ends it
        # An earlier platform does not know ``count`` and creates one: the others are then requested singly.
        rest = self.environments[len(pairs) :]
        self._starting = [asyncio.create_task(_adopt(env, instance)) for env, instance in pairs]
        self._starting += [asyncio.create_task(_initialize(env)) for env in rest]


async def _initialize(env: Environment) -> Environment:
    await env.initialize()
    return env


async def _adopt(env: Environment, instance: EnvInstance) -> Environment:
    await env._adopt(instance)
    return env
