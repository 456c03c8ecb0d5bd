"""How commands reach a platform: the one that is named or set, else the one that runs on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from aenv.errors import ConfigError, NotFound, UsageError

if TYPE_CHECKING:
    from aenv.client.platform_client import ApiClient
    from aenv.platform.instances.ended import EndedRecord

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def platform_options(function: F) -> F:
    """``--system-url`` and ``--api-key``."""
    url = click.option("--system-url", help="The platform.  [default: AENV_SYSTEM_URL, system_url of your settings]")
    key = click.option("--api-key", help="Your token for it.  [default: AENV_API_KEY, api_key of your settings]")
    return url(key(function))


def chosen(system_url: str | None, api_key: str | None) -> tuple[str | None, str | None]:
    """The platform's URL, None for this machine's own, and the token."""
    from aenv import config

    settings = config.load()
    return system_url or settings.system_url or None, api_key or settings.hub_config.api_key or None


def running(system_url: str | None, api_key: str | None) -> tuple[str, str | None] | None:
    """The same, with the URL of this machine's own; None where that is meant and does not run."""
    url, key = chosen(system_url, api_key)
    if url is None:
        url = next(iter(local_urls()), None)
    return (url, key) if url is not None else None


def local_urls() -> list[str]:
    """Of this user's platforms that run here, that of this interpreter and version first."""
    from aenv.client.local_platforms import LocalPaths, all_of_user, health

    own = LocalPaths.of_user()
    others = [each for each in all_of_user(own) if each.key != own.key]
    return [each.url for each in (own, *others) if health(each) is not None]


def with_all(system_url: str | None, api_key: str | None, work: Callable[[ApiClient], Awaitable[T]]) -> list[T]:
    """Do something with every platform that is meant: the one that is set, or all of this user's on this machine."""
    urls = [] if chosen(system_url, api_key)[0] is not None else local_urls()
    return [with_api(url, api_key, work) for url in urls] or [with_api(system_url, api_key, work)]


def with_api_of(system_url: str | None, api_key: str | None, work: Callable[[ApiClient], Awaitable[T]]) -> T:
    """Do something with the one of these platforms that knows what it is about.

    Raises:
        NotFound: none does.
    """
    is_local = chosen(system_url, api_key)[0] is None
    urls = local_urls() if is_local else []
    if is_local and not urls:
        raise NotFound(
            "there is no such instance: no platform is set, and none runs on this machine",
            details={"hint": "Instances end with their platform. Name another with --system-url."},
        )
    for url in urls[:-1]:
        with contextlib.suppress(NotFound):
            return with_api(url, api_key, work)
    return with_api(urls[-1] if urls else system_url, api_key, work)


def local_past(name: str, system_url: str | None, api_key: str | None) -> EndedRecord | None:
    """What is kept of an instance that has ended on this machine; None: nothing, or another platform is meant."""
    from aenv.client.local_platforms import LocalPaths
    from aenv.platform.instances.ended import EndedInstances
    from aenv.storage.sqlite import SqliteStore

    path = LocalPaths.of_user().ended
    if chosen(system_url, api_key)[0] is not None or not path.exists():
        return None

    async def main() -> EndedRecord | None:
        store = SqliteStore(path)
        try:
            return await EndedInstances(store).read(name)
        finally:
            await store.close()

    return asyncio.run(main())


def with_api(system_url: str | None, api_key: str | None, work: Callable[[ApiClient], Awaitable[T]]) -> T:
    """Do something with the platform."""
    from aenv.client.platform_client import ApiClient

    found = running(system_url, api_key)
    if found is None:
        hint = {"hint": "Name a platform with --system-url, or start an instance here first."}
        raise ConfigError("no platform is set, and none runs on this machine", hint)
    url, key = found

    async def main() -> T:
        async with ApiClient(url, api_key=key) as api:
            return await work(api)

    return asyncio.run(main())


def log_options(function: F) -> F:
    """``--tail`` and ``--follow``."""
    tail = click.option("-n", "--tail", type=click.IntRange(min=0), help="Only so many lines of it.")
    return tail(click.option("-f", "--follow", is_flag=True, help="Go on until it ends.")(function))


async def show_log(log: str | AsyncIterator[str]) -> None:
    """Show a log, as it is or as it comes."""
    if isinstance(log, str):
        click.echo(log, nl=False)
        return
    async for text in log:
        click.echo(text, nl=False)
        sys.stdout.flush()


def pairs_of(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    """What was given as KEY=VALUE, several times."""
    pairs = [text.partition("=") for text in texts]
    wrong = [text for text, (name, equals, _) in zip(texts, pairs, strict=True) if not (name and equals)]
    if wrong:
        raise UsageError(f"{option}: write it like KEY=VALUE, not '{wrong[0]}'")
    return {name: value for name, _, value in pairs}
