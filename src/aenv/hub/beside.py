"""A hub inside another server, which has tokens of its own that are good for the hub as well."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aenv.errors import Unauthorized
from aenv.hub.access import Caller, Tokens
from aenv.hub.app import Authenticate, HubApp
from aenv.hub.catalog import Catalog
from aenv.hub.notices import Messenger
from aenv.hub.open import Place, open_catalog
from aenv.hub.quota import DEFAULT


@asynccontextmanager
async def opened(place: Place, quota: int = DEFAULT) -> AsyncIterator[Catalog]:
    """The hub that is kept there, ready, with what it has to tell others being sent.

    ``quota``: bytes that a user may occupy; 0: no limit.
    """
    catalog = open_catalog(place, quota)
    try:
        await catalog.ready()
        messenger = asyncio.create_task(Messenger(catalog.store, catalog.notices).run())
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
    own = Tokens(catalog.store, catalog.clock)

    async def either(text: str) -> Caller:
        try:
            return await authenticate(text)
        except Unauthorized as error:
            try:
                return await own.authenticate(text)
            except Unauthorized:
                raise error from None

    return HubApp(catalog, auth=True, authenticate=either)
