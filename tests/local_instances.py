"""The local platform's own view of an environment's instance, through its public API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aenv import Environment
from aenv.client import local_lease
from aenv.client.platform_client import ApiClient
from aenv.schema.instances import EnvInstance


@asynccontextmanager
async def local_api() -> AsyncIterator[ApiClient]:
    """Yield a client of the local platform that this process has a lease on."""
    held = local_lease.lease()
    assert held is not None, "this process uses no local platform"
    async with ApiClient(held.where.url) as api:
        yield api


async def instance_of(env: Environment) -> EnvInstance:
    """Return the instance of an environment."""
    async with local_api() as api:
        return await api.get_env_instance((await env.get_env_info())["instance_id"])
