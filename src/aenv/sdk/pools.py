"""Warm pools: keep instances ready for an environment as it will be created later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aenv.errors import InvalidUse
from aenv.sdk.placement import PlatformPlacement

if TYPE_CHECKING:
    from aenv.schema.instances import EnvPool
    from aenv.sdk.environment import Environment


async def create_pool(env: Environment, size: int) -> EnvPool:
    """Keep ``size`` instances ready that equal the one ``env`` would create; return once the first is ready.

    The pool stays until `delete_pool`, or until its platform ends.

    Raises:
        InvalidUse: a server that was started by hand has no pools.
    """
    placement = _placement(env)
    try:
        return await placement.create_pool(env._create_request(), size)
    finally:
        await placement.disconnect()


async def delete_pool(env: Environment) -> None:
    """End the pool of an environment. Instances in use stay.

    Raises:
        NotFound: there is none.
    """
    placement = _placement(env)
    try:
        await (await placement.api()).delete_env_pool(env.env_name)
    finally:
        await placement.disconnect()


def _placement(env: Environment) -> PlatformPlacement:
    if not isinstance(env._placement, PlatformPlacement):
        raise InvalidUse("a server that was started by hand has no pools", env.env_name)
    return env._placement
