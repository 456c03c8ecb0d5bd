"""Connect a platform with its hub: neither room imports the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aenv.hub.access.hub_tokens import HubCaller, Scope
from aenv.hub.embedded import embedded_app, open_embedded
from aenv.hub.local_hub import LocalHub
from aenv.hub.open_hub import HubLocation, open_catalog, open_hub
from aenv.platform.access.platform_tokens import Authenticator, Role
from aenv.platform.instances.env_sources import OpenHub
from aenv.platform.operations.serve import EmbeddedHub, OpenEmbeddedHub
from aenv.platform.operations.settings import ServeSettings
from aenv.schema.envhub import Hub
from aenv.schema.instances import HubAccess

SCOPES: dict[Role, Scope | None] = {"metrics": None, "read-only": "read", "user": "push", "admin": "admin"}
"""Platform role to scope in the embedded hub; None: no more than a caller without a token."""


def hub_beside(place: HubLocation, settings: ServeSettings) -> OpenEmbeddedHub:
    """Build the hub that is served with the platform."""

    @asynccontextmanager
    async def open_embedded_hub(door: Authenticator) -> AsyncIterator[EmbeddedHub]:
        async def authenticate(text: str) -> HubCaller:
            caller = await door.authenticate(text)
            return HubCaller(caller.name, SCOPES[caller.role])

        async with open_embedded(place, settings.hub_quota_bytes) as catalog:
            only_loopback = not settings.open_to_others
            yield embedded_app(catalog, None if door.open else authenticate, only_loopback=only_loopback)

    return open_embedded_hub


def hub_of(place: HubLocation | None) -> OpenHub:
    """Return how the platform opens its hub: the one at ``place`` if given."""

    def open_it(access: HubAccess) -> Hub:
        return open_hub(access) if place is None else LocalHub(open_catalog(place))

    return open_it
