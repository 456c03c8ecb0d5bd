"""Connect a platform with its hub and the console: none of these rooms imports another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aenv.console.mount import mounted
from aenv.errors import Unauthorized
from aenv.http.messages import Handler
from aenv.hub.access.hub_tokens import HubCaller, HubToken, HubTokens, Scope
from aenv.hub.embedded import embedded_app, open_embedded
from aenv.hub.local_hub import LocalHub
from aenv.hub.open_hub import HubLocation, open_catalog, open_hub
from aenv.platform.access.platform_tokens import OTHER_TOKEN, Allowance, Authenticator, Caller, Role
from aenv.platform.instances.requests.env_sources import OpenHub
from aenv.platform.operations.serve import EmbeddedHub, OpenEmbeddedHub
from aenv.platform.operations.settings import ServeSettings
from aenv.schema.envhub import Hub
from aenv.schema.instances import HubAccess

SCOPES: dict[Role, Scope | None] = {"metrics": None, "read-only": "read", "user": "push", "admin": "admin"}
"""Platform role to scope in the embedded hub; None: no more than a caller without a token."""
ROLES: dict[Scope, str] = {scope: role for role, scope in SCOPES.items() if scope is not None}
"""Scope in the embedded hub to the platform role that has it."""


def embedded_hub_opener(place: HubLocation, settings: ServeSettings) -> OpenEmbeddedHub:
    """Return a function that opens the hub that the platform's server embeds."""

    @asynccontextmanager
    async def open_embedded_hub(authenticator: Authenticator) -> AsyncIterator[EmbeddedHub]:
        async def authenticate(text: str) -> HubCaller:
            caller = await authenticator.authenticate(text)
            return HubCaller(caller.name, SCOPES[caller.role], platform_roles=ROLES)

        async with open_embedded(place, settings.hub_quota_bytes) as catalog:
            tokens = HubTokens(catalog.store, catalog.clock)
            authenticator.other_token_check = _hub_token_check(tokens)
            authenticator.other_token_id_check = _hub_token_id_check(tokens)
            only_loopback = not settings.open_to_others
            yield embedded_app(catalog, None if authenticator.open else authenticate, only_loopback=only_loopback)

    return open_embedded_hub


def _hub_token_check(tokens: HubTokens) -> Callable[[str], Awaitable[Caller]]:
    """Return a check of tokens that ``POST /token`` of the hub made, which clients of version 0.1 send the platform."""

    async def check(text: str) -> Caller:
        return _caller_of(await tokens.check(text))

    return check


def _hub_token_id_check(tokens: HubTokens) -> Callable[[str], Awaitable[Caller]]:
    async def check(token_id: str) -> Caller:
        return _caller_of(await tokens.check_id(token_id.removeprefix(OTHER_TOKEN)))

    return check


def _caller_of(token: HubToken) -> Caller:
    if not token.for_instances:
        raise Unauthorized("this token is for the hub only")
    allowance = Allowance(instances=token.max_instances)
    return Caller(token.user or token.id, "user", f"{OTHER_TOKEN}{token.id}", allowance)


def hub_opener(place: HubLocation | None) -> OpenHub:
    """Return a function that opens a platform's hub: the one at ``place``, else the one that a request names."""

    def open_it(access: HubAccess) -> Hub:
        return open_hub(access) if place is None else LocalHub(open_catalog(place))

    return open_it


def console_beside(settings: ServeSettings) -> Callable[[Handler], Handler]:
    """Return a function that adds the console to a platform's handler, if the settings want one."""

    def add(api: Handler) -> Handler:
        only_loopback = not settings.open_to_others and not settings.with_auth
        return mounted(api, only_loopback=only_loopback, trace_url=settings.trace_url)

    return add if settings.console else lambda api: api
