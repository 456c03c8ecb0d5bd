"""Put a platform and its hub together: neither room knows the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aenv.api.access import Doorkeeper, Role
from aenv.api.serve import Beside, OpenBeside
from aenv.api.settings import ServeSettings
from aenv.api.sources import OpenHub
from aenv.hub.access import Caller, Scope
from aenv.hub.beside import app_beside, opened
from aenv.hub.local import LocalHub
from aenv.hub.open import Place, open_catalog, open_hub
from aenv.schema.hub import Hub
from aenv.schema.instance import HubAccess

SCOPES: dict[Role, Scope | None] = {"metrics": None, "read-only": "read", "user": "push", "admin": "admin"}
"""What a role of the platform may do in the hub beside it; None: no more than who has no token."""


def hub_beside(place: Place, settings: ServeSettings) -> OpenBeside:
    """The hub that is served with the platform."""

    @asynccontextmanager
    async def open_beside(door: Doorkeeper) -> AsyncIterator[Beside]:
        async def authenticate(text: str) -> Caller:
            caller = await door.authenticate(text)
            return Caller(caller.name, SCOPES[caller.role])

        async with opened(place, settings.hub_quota_bytes) as catalog:
            only_loopback = not settings.open_to_others
            yield app_beside(catalog, None if door.open else authenticate, only_loopback=only_loopback)

    return open_beside


def hub_of(place: Place | None) -> OpenHub:
    """How the platform opens the hub that it takes environments from; the one at ``place`` if that is given."""

    def open_it(access: HubAccess) -> Hub:
        return open_hub(access) if place is None else LocalHub(open_catalog(place))

    return open_it
