"""Create several instances of one environment at once, for a group of rollouts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from aenv.errors import InvalidUse
from aenv.schema.instances import EnvInstance
from aenv.sdk import arguments as checks
from aenv.sdk.async_only import AsyncOnly
from aenv.sdk.environment import Environment
from aenv.sdk.instance_group import InstanceGroup
from aenv.sdk.placement import PlatformPlacement


class Batch(AsyncOnly):
    """Several environments, created together; returned by `Environment.batch`.

    ``async with`` creates and releases them. ``async for`` yields each environment when it is ready. A failed creation
    raises when its turn comes; the others continue.
    """

    _twin = "SyncEnvironment.batch(...)"

    def __init__(self, environments: list[Environment]) -> None:
        self.environments = environments
        self._starting: list[asyncio.Task[Environment]] = []
        self._released = False

    def __len__(self) -> int:
        return len(self.environments)

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
        if isinstance(placement, PlatformPlacement) and first._attach_to is None:
            try:
                created = await placement.create_many([env._create_request() for env in self.environments])
            except BaseException:
                await placement.disconnect()
                raise
        pairs = list(zip(self.environments, created, strict=False))
        group = InstanceGroup() if isinstance(placement, PlatformPlacement) and placement.is_local else None
        for env, instance in pairs:
            env._instance = instance  # so that a release before its task runs ends it
            if isinstance(env._placement, PlatformPlacement):
                env._placement.group = group
        # An earlier platform does not know ``count`` and creates one, or does not know ``items`` and creates copies:
        # those that are missing are then requested singly.
        rest = self.environments[len(pairs) :]
        self._starting = [asyncio.create_task(_adopt(env, instance)) for env, instance in pairs]
        self._starting += [asyncio.create_task(_initialize(env)) for env in rest]


PER_ITEM = ("datasource", "environment_variables", "arguments", "labels", "seed")
"""Arguments that each instance of a batch may have of its own."""
_ADDED = ("environment_variables", "labels")


def options_of_items(
    n: int | None,
    items: Sequence[Mapping[str, Any]] | None,
    options: Mapping[str, Any],
    *,
    allowed: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Return the arguments of each environment of a batch. ``allowed``: those that items may have, if others.

    Raises:
        InvalidUse: there is neither ``n`` nor ``items``, both are there and differ, or an item is invalid.
    """
    if items is None:
        if n is None:
            raise InvalidUse("n must be an int, not None, unless there are items")
        return [dict(options)] * checks.integer("n", n, 0)
    if not isinstance(items, Sequence):
        raise InvalidUse(f"items must be a list of dicts, not {type(items).__name__}")
    if n is not None and checks.integer("n", n, 0) != len(items):
        raise InvalidUse(f"n is {n}, but there are {len(items)} items; leave n out")
    made = []
    for number, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise InvalidUse(f"items[{number}] must be a dict, not {type(item).__name__}")
        for name in item:
            if name not in (allowed or PER_ITEM):
                raise InvalidUse(f"items[{number}] has {name!r}; expected {', '.join(allowed or PER_ITEM)}")
            if name in _ADDED and not isinstance(item[name], Mapping | None):
                raise InvalidUse(f"items[{number}]: {name} must be a dict, not {type(item[name]).__name__}")
        added = {name: {**(options.get(name) or {}), **(item.get(name) or {})} for name in _ADDED if name in item}
        made.append({**options, **item, **added})
    return made


async def _initialize(env: Environment) -> Environment:
    await env.initialize()
    return env


async def _adopt(env: Environment, instance: EnvInstance) -> Environment:
    await env._adopt(instance)
    return env
