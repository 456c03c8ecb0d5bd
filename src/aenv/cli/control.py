"""What commands that speak to a platform have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from aenv.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from aenv.client.api import ApiClient

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def platform_options(function: F) -> F:
    """``--system-url`` and ``--api-key``, as the arguments of these names."""
    url = click.option("--system-url", help="The platform.  [default: AENV_SYSTEM_URL, system_url of your settings]")
    key = click.option("--api-key", help="Your token for it.  [default: AENV_API_KEY, api_key of your settings]")
    return url(key(function))


def settings_of(system_url: str | None, api_key: str | None) -> tuple[str | None, str | None]:
    """The platform's URL and the token: what was given, else what the user's settings say."""
    from aenv import config

    settings = config.load()
    return system_url or settings.system_url or None, api_key or settings.hub_config.api_key or None


def with_api(system_url: str | None, api_key: str | None, work: Callable[[ApiClient], Awaitable[T]]) -> T:
    """What ``work`` finds out from the platform: the one that is set, else the one of this machine."""
    from aenv.client.api import ApiClient
    from aenv.client.local import LocalPaths, health

    url, key = settings_of(system_url, api_key)
    if url is None:
        where = LocalPaths.of_user()
        if health(where) is None:
            hint = {"hint": "Name a platform with --system-url, or start an instance here first."}
            raise ConfigError("no platform is set, and none runs on this machine", hint)
        url = where.url

    async def main() -> T:
        async with ApiClient(url, api_key=key) as api:
            return await work(api)

    return asyncio.run(main())


def pairs_of(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    """What was given as KEY=VALUE, several times."""
    pairs = [text.partition("=") for text in texts]
    wrong = [text for text, (name, equals, _) in zip(texts, pairs, strict=True) if not (name and equals)]
    if wrong:
        raise UsageError(f"{option}: write it like KEY=VALUE, not '{wrong[0]}'")
    return {name: value for name, _, value in pairs}
