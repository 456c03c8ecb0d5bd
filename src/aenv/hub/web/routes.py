"""Routes under ``/api/v1``: environments, blobs, tokens and webhooks."""

from __future__ import annotations

from typing import Any

from aenv.hub.access.hub_tokens import HubTokens
from aenv.hub.web.bodies import (
    Digests,
    DigestsResponse,
    DoneBody,
    EnvListQuery,
    GrantBody,
    HookRequest,
    HookResponse,
    NamespaceBody,
    PageQuery,
    PublicBody,
    PushQuery,
    QuotaBody,
    ReasonBody,
    ReasonQuery,
    RefQuery,
    SearchQuery,
    TokenRequest,
    TokenResponse,
    TransferBody,
    UsageQuery,
    UserQuery,
)
from aenv.hub.web.route import Exchange, Route
from aenv.schema import paths
from aenv.schema.envhub import EnvPage, EnvSummary, EnvVersion, Grants, Pushed, PushRequest, StorageUsage

_ENVS, _BLOBS = paths.ENVIRONMENTS, paths.BLOBS
_ENV = f"{_ENVS}/{{name}}"
_GRANTS = f"{_ENV}/grants"
_VERSIONS = f"{_ENV}/versions"
_VERSION = f"{_VERSIONS}/{{version}}"
_SPACES, _SPACE = paths.NAMESPACES, f"{paths.NAMESPACES}/{{name}}"


async def _list(x: Exchange) -> EnvPage:
    q = x.query(EnvListQuery)
    return await x.hub.list(q.name, q.tags, q.limit, q.offset, q.after)


async def _search(x: Exchange) -> EnvPage:
    q = x.query(SearchQuery)
    return await x.hub.search(q.q, q.limit, q.after)


async def _push(x: Exchange) -> Pushed:
    x.hub.caller.need("push")
    return await x.hub.push(x.body(PushRequest), x.query(PushQuery).force)


async def _get(x: Exchange) -> EnvVersion:
    return await x.hub.get(x.path["name"], x.query(RefQuery).ref)


async def _get_version(x: Exchange) -> EnvVersion:
    return await x.hub.get(x.path["name"], x.path["version"])


async def _versions(x: Exchange) -> EnvPage:
    q = x.query(PageQuery)
    return await x.hub.versions(x.path["name"], q.limit, q.after)


async def _set_public(x: Exchange) -> DoneBody:
    x.hub.caller.need("push")
    await x.hub.set_public(x.path["name"], x.body(PublicBody).public)
    return DoneBody()


async def _grants(x: Exchange) -> Grants:
    return await x.hub.grants(x.path["name"])


async def _grant(x: Exchange) -> Grants:
    x.hub.caller.need("push")
    request = x.body(GrantBody)
    return await x.hub.grant(x.path["name"], request.user, request.access)


async def _revoke_grant(x: Exchange) -> Grants:
    x.hub.caller.need("push")
    return await x.hub.revoke(x.path["name"], x.query(UserQuery).user)


async def _transfer(x: Exchange) -> Grants:
    x.hub.caller.need("push")
    return await x.hub.transfer(x.path["name"], x.body(TransferBody).user)


async def _delete(x: Exchange) -> DoneBody:
    x.hub.caller.need("push")
    await x.hub.delete(x.path["name"], x.path["version"], x.query(ReasonQuery).reason)
    return DoneBody()


async def _release(x: Exchange) -> EnvSummary:
    return await x.hub.release(x.path["name"], x.path["version"])


async def _deprecate(x: Exchange) -> EnvSummary:
    x.hub.caller.need("push")
    return await x.hub.deprecate(x.path["name"], x.path["version"], x.body(ReasonBody).reason)


async def _yank(x: Exchange) -> EnvSummary:
    x.hub.caller.need("push")
    return await x.hub.yank(x.path["name"], x.path["version"], x.body(ReasonBody).reason)


async def _missing(x: Exchange) -> DigestsResponse:
    x.hub.caller.need("push")
    return DigestsResponse(digests=await x.hub.missing(x.body(Digests).digests))


async def _put_blob(x: Exchange) -> DoneBody:
    await x.hub.put_blob(x.path["digest"], x.request.body)
    return DoneBody()


async def _get_blob(x: Exchange) -> bytes:
    return await x.hub.get_blob(x.path["digest"])


async def _namespaces(x: Exchange) -> list[Grants]:
    return await x.hub.namespaces()


async def _reserve(x: Exchange) -> Grants:
    x.hub.caller.need("read")
    request = x.body(NamespaceBody)
    return await x.hub.reserve(request.name, request.user)


async def _unreserve(x: Exchange) -> DoneBody:
    await x.hub.unreserve(x.path["name"])
    return DoneBody()


async def _grant_namespace(x: Exchange) -> Grants:
    x.hub.caller.need("push")
    request = x.body(GrantBody)
    return await x.hub.grant_namespace(x.path["name"], request.user, request.access)


async def _revoke_namespace(x: Exchange) -> Grants:
    x.hub.caller.need("push")
    return await x.hub.revoke_namespace(x.path["name"], x.query(UserQuery).user)


async def _usage(x: Exchange) -> StorageUsage:
    x.hub.caller.need("read")
    return await x.hub.usage(x.query(UsageQuery).user)


async def _set_quota(x: Exchange) -> StorageUsage:
    x.hub.caller.need("admin")
    request = x.body(QuotaBody)
    return await x.hub.set_quota(request.user, request.limit)


async def _tokens(x: Exchange) -> list[TokenResponse]:
    x.hub.caller.need("admin")
    return [TokenResponse.of(token) for token in await _store(x).all()]


async def _make_token(x: Exchange) -> TokenResponse:
    x.hub.caller.need("admin")
    request = x.body(TokenRequest)
    expires = None if request.expires_in is None else x.hub.catalog.clock() + request.expires_in
    token, text = await _store(x).create(
        user=request.user, scope=request.scope, namespaces=request.namespaces, expires_at=expires
    )
    return TokenResponse.of(token, text)


async def _revoke(x: Exchange) -> TokenResponse:
    x.hub.caller.need("admin")
    return TokenResponse.of(await _store(x).revoke(x.path["id"]))


def _store(x: Exchange) -> HubTokens:
    return HubTokens(x.hub.catalog.store, x.hub.catalog.clock)


async def _hooks(x: Exchange) -> list[HookResponse]:
    x.hub.caller.need("admin")
    return [_hook_response(hook, None) for hook in await x.hub.catalog.webhooks.hooks()]


async def _add_hook(x: Exchange) -> HookResponse:
    x.hub.caller.need("admin")
    request = x.body(HookRequest)
    hook = await x.hub.catalog.webhooks.add(request.url, request.events, request.namespaces, x.hub.catalog.now())
    return _hook_response(hook, hook.secret)


async def _remove_hook(x: Exchange) -> DoneBody:
    x.hub.caller.need("admin")
    await x.hub.catalog.webhooks.remove(x.path["id"])
    return DoneBody()


def _hook_response(hook: Any, secret: str | None) -> HookResponse:
    return HookResponse.model_validate({**hook.model_dump(), "secret": secret})


ROUTES = (
    Route("GET", _ENVS, "List environments, by name", _list, EnvPage, EnvListQuery),
    Route("POST", _ENVS, "Push a version", _push, Pushed, PushQuery, PushRequest, "push"),
    Route("GET", paths.SEARCH, "Search names, tags, descriptions and tools", _search, EnvPage, SearchQuery),
    Route("GET", _ENV, "Get the version that a name resolves to", _get, EnvVersion, RefQuery),
    Route("PATCH", _ENV, "Make an environment public or private", _set_public, DoneBody, None, PublicBody, "push"),
    Route("GET", _GRANTS, "Get the owner and grants of an environment", _grants, Grants, needs="push"),
    Route(
        "POST", _GRANTS, "Grant a user read or write access to an environment", _grant, Grants, None, GrantBody, "push"
    ),
    Route("DELETE", _GRANTS, "Revoke a user's grant", _revoke_grant, Grants, UserQuery, None, "push"),
    Route(
        "POST",
        f"{_ENV}/transfer",
        "Transfer an environment to another owner",
        _transfer,
        Grants,
        None,
        TransferBody,
        "push",
    ),
    Route("GET", _VERSIONS, "List the versions of an environment, newest first", _versions, EnvPage, PageQuery),
    Route("GET", _VERSION, "Get a version", _get_version, EnvVersion),
    Route("DELETE", _VERSION, "Delete a version", _delete, DoneBody, ReasonQuery, None, "push"),
    Route("POST", f"{_VERSION}/release", "Release a version", _release, EnvSummary, None, None, "push"),
    Route("POST", f"{_VERSION}/deprecate", "Deprecate a version", _deprecate, EnvSummary, None, ReasonBody, "push"),
    Route("POST", f"{_VERSION}/yank", "Hide a version from ranges", _yank, EnvSummary, None, ReasonBody, "push"),
    Route(
        "POST",
        f"{_BLOBS}/missing",
        "List which of the given blobs are missing",
        _missing,
        DigestsResponse,
        None,
        Digests,
        "push",
        tag="blobs",
    ),
    Route("PUT", f"{_BLOBS}/{{digest}}", "Upload a blob", _put_blob, DoneBody, None, bytes, "push", tag="blobs"),
    Route("GET", f"{_BLOBS}/{{digest}}", "Download a blob", _get_blob, bytes, tag="blobs"),
    Route("GET", _SPACES, "List reserved namespaces", _namespaces, list[Grants], needs="read", tag="namespaces"),
    Route("POST", _SPACES, "Reserve a namespace", _reserve, Grants, None, NamespaceBody, "admin", tag="namespaces"),
    Route("DELETE", _SPACE, "Release a namespace", _unreserve, DoneBody, needs="admin", tag="namespaces"),
    Route(
        "POST",
        f"{_SPACE}/grants",
        "Grant a user read or write access to all environments of a namespace",
        _grant_namespace,
        Grants,
        None,
        GrantBody,
        "push",
        tag="namespaces",
    ),
    Route(
        "DELETE",
        f"{_SPACE}/grants",
        "Revoke a user's grant on a namespace",
        _revoke_namespace,
        Grants,
        UserQuery,
        None,
        "push",
        tag="namespaces",
    ),
    Route(
        "GET",
        paths.USAGE,
        "Get a user's storage usage",
        _usage,
        StorageUsage,
        UsageQuery,
        None,
        "read",
        tag="storage",
    ),
    Route(
        "PUT",
        paths.QUOTAS,
        "Set a user's storage limit",
        _set_quota,
        StorageUsage,
        None,
        QuotaBody,
        "admin",
        tag="storage",
    ),
    Route("GET", paths.TOKENS, "List tokens", _tokens, list[TokenResponse], needs="admin", tag="tokens"),
    Route(
        "POST", paths.TOKENS, "Create a token", _make_token, TokenResponse, None, TokenRequest, "admin", tag="tokens"
    ),
    Route("DELETE", f"{paths.TOKENS}/{{id}}", "Revoke a token", _revoke, TokenResponse, needs="admin", tag="tokens"),
    Route("GET", paths.WEBHOOKS, "List webhooks", _hooks, list[HookResponse], needs="admin", tag="webhooks"),
    Route("POST", paths.WEBHOOKS, "Add a webhook", _add_hook, HookResponse, None, HookRequest, "admin", tag="webhooks"),
    Route(
        "DELETE", f"{paths.WEBHOOKS}/{{id}}", "Remove a webhook", _remove_hook, DoneBody, needs="admin", tag="webhooks"
    ),
)
