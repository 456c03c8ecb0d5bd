"""A hub inside another server, which has tokens of its own that are good for the hub as well."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aenv.errors import Unauthorized
from aenv.hub.access.hub_tokens import HubCaller, HubTokens
from aenv.hub.access.storage_quota import DEFAULT
from aenv.hub.catalog import Catalog
from aenv.hub.open_hub import HubLocation, open_catalog
from aenv.hub.web.app import Authenticate, HubApp
from aenv.hub.web.webhooks import WebhookSender


@asynccontextmanager
async def opened(place: HubLocation, quota: int = DEFAULT) -> AsyncIterator[Catalog]:
    """The hub that is kept there, ready, with what it has to tell others being sent.

    ``quota``: bytes that a user may occupy; 0: no limit.
    """
    catalog = open_catalog(place, quota)
    try:
        await catalog.ready()
        messenger = asyncio.create_task(WebhookSender(catalog.store, catalog.notices).run())
        try:
            yield catalog
        finally:
            messenger.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await messenger
    finally:
        await catalog.store.close()
        await catalog.blobs.close()


def app_beside(catalog: Catalog, authenticate: Authenticate | None, *, only_loopback: bool) -> HubApp:
    """What answers for it. ``authenticate`` knows the other server's tokens; None: nobody needs any."""
    if authenticate is None:
        return HubApp(catalog, auth=False, only_loopback=only_loopback)
    own = HubTokens(catalog.store, catalog.clock)

    async def either(text: str) -> HubCaller:
        try:
            return await authenticate(text)
        except Unauthorized as error:
            try:
                return await own.authenticate(text)
            except Unauthorized:
                raise error from None

    return HubApp(catalog, auth=True, authenticate=either)
