"""Find an instance by its id, or by the name of its environment, and use it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from aenv.cli.platform_address import chosen, with_api_of
from aenv.errors import NotFound, UsageError
from aenv.schema.suggestions import did_you_mean

if TYPE_CHECKING:
    from aenv.client.platform_client import ApiClient
    from aenv.schema.instances import EnvInstance
    from aenv.sdk.environment import Environment

T = TypeVar("T")


def with_instance(
    name: str, system_url: str | None, api_key: str | None, work: Callable[[Environment], Awaitable[T]]
) -> T:
    """Run an action on the instance with this id, or on the only one of the environment with this name.

    Raises:
        NotFound: there is none.
        UsageError: the environment has several instances.
    """
    from aenv.sdk.environment import Environment

    async def where(api: ApiClient) -> tuple[EnvInstance, str]:
        return await find_instance(api, name), api.base_url

    found, url = with_api_of(system_url, api_key, where)
    _, key = chosen(system_url, api_key)
    env_name = found.env.name if found.env else found.id
    env = Environment(env_name, aenv_url=url, api_key=key, instance_id=found.id, skip_for_healthy=True)

    async def main() -> T:
        async with env:
            return await work(env)

    return asyncio.run(main())


async def find_instance(api: ApiClient, name: str, *, ended: bool = False) -> EnvInstance:
    """Return the instance with this id, or the only running one of the environment with this name.

    ``ended``: an id may also be of an instance that has ended.

    Raises:
        NotFound: there is none.
        UsageError: the environment has several instances.
    """
    try:
        return await api.get_env_instance(name, deleted=ended)
    except NotFound:
        page = await api.page_env_instances(name, status="Running", limit=20)
        if not page.items:
            running = (await api.page_env_instances(status="Running", limit=100)).items
            names = [each.env.name for each in running if each.env] + [each.id for each in running]
            raise NotFound(
                f"there is no {'' if ended else 'running '}instance '{name}'{did_you_mean(name, names)}",
                details={"hint": "List them: aenv instance list. Create one: aenv instance create NAME --keep-alive"},
            ) from None
    if len(page.items) > 1:
        ids = ", ".join(each.id for each in page.items[:5])
        raise UsageError(f"{name} has several instances; name one by its id: {ids}{', ...' if page.items[5:] else ''}")
    return page.items[0]
