"""Address of the platform a command talks to: named, from the settings, or running on this machine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from aenv.cli.inside.text import stdout
from aenv.errors import ConfigError, NotFound, UsageError

if TYPE_CHECKING:
    from aenv.client.platform_client import ApiClient
    from aenv.platform.instances.ended import EndedRecord

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def platform_options(function: F) -> F:
    """``--system-url`` and ``--api-key``."""
    url = click.option(
        "--system-url", help="URL of the platform.  [default: AENV_SYSTEM_URL, system_url of your settings]"
    )
    key = click.option("--api-key", help="Token for the platform.  [default: AENV_API_KEY, api_key of your settings]")
    return url(key(function))


def chosen(system_url: str | None, api_key: str | None) -> tuple[str | None, str | None]:
    """Return the platform's URL, None for the local one, and the token."""
    from aenv import config

    settings = config.load()
    return system_url or settings.system_url or None, api_key or settings.hub_config.api_key or None


def running(system_url: str | None, api_key: str | None) -> tuple[str, str | None] | None:
    """Return URL and token, with the URL of a running local platform; None if that is meant and does not run."""
    url, key = chosen(system_url, api_key)
    if url is None:
        url = next(iter(local_urls()), None)
    return (url, key) if url is not None else None


def local_urls() -> list[str]:
    """List this user's running local platforms, that of this interpreter and version first."""
    from aenv.client.local_platforms import LocalPaths, all_of_user, health

    own = LocalPaths.of_user()
    others = [each for each in all_of_user(own) if each.key != own.key]
    return [each.url for each in (own, *others) if health(each) is not None]


def with_all(system_url: str | None, api_key: str | None, work: Callable[[ApiClient], Awaitable[T]]) -> list[T]:
    """Run an action on each selected platform: the configured one, or all of this user's local ones."""
    urls = [] if chosen(system_url, api_key)[0] is not None else local_urls()
    return [with_api(url, api_key, work) for url in urls] or [with_api(system_url, api_key, work)]


def with_api_of(system_url: str | None, api_key: str | None, work: Callable[[ApiClient], Awaitable[T]]) -> T:
    """Run an action on the first selected platform that knows its object.

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
    """Return the record of an instance that has ended on this machine, if any, unless another platform is selected."""
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
    """Run an action with a client of the platform."""
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
    tail = click.option("-n", "--tail", type=click.IntRange(min=0), help="Number of lines from the end.")
    return tail(click.option("-f", "--follow", is_flag=True, help="Follow the log until it ends.")(function))


async def show_log(log: str | AsyncIterator[str]) -> None:
    """Print a log, or follow it. On a terminal, control characters are shown and not sent."""
    if isinstance(log, str):
        stdout(log.encode(errors="surrogateescape"), log)
        return
    async for text in log:
        stdout(text.encode(errors="surrogateescape"), text)


def pairs_of(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    """Parse repeated KEY=VALUE options."""
    pairs = [text.partition("=") for text in texts]
    wrong = [text for text, (name, equals, _) in zip(texts, pairs, strict=True) if not (name and equals)]
    if wrong:
        raise UsageError(f"{option}: invalid value '{wrong[0]}'; write KEY=VALUE")
    return {name: value for name, _, value in pairs}
