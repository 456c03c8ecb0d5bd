"""A hub embedded in another server, whose tokens the hub accepts beside its own."""

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
async def open_embedded(location: HubLocation, quota: int = DEFAULT) -> AsyncIterator[Catalog]:
    """Open the hub at a location, prepare it, and deliver its webhooks while the block runs.

    ``quota``: bytes that a user may occupy; 0: no limit.
    """
    catalog = open_catalog(location, quota)
    try:
        await catalog.ready()
        sender = asyncio.create_task(WebhookSender(catalog.store, catalog.webhooks).run())
        try:
            yield catalog
        finally:
            sender.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sender
    finally:
        await catalog.store.close()
        await catalog.blobs.close()


def embedded_app(catalog: Catalog, authenticate: Authenticate | None, *, only_loopback: bool) -> HubApp:
    """Return the HTTP app of an embedded hub.

    ``authenticate`` checks tokens of the surrounding server; None turns authentication off.
    """
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
