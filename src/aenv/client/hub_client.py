"""HTTP client of a hub.

All operations of a hub are idempotent, so a failed request is retried with backoff: a hub that restarts in the middle
of a push goes unnoticed.
"""

from __future__ import annotations

import asyncio
import functools
import time
from typing import Any
from urllib.parse import quote, urlencode

from pydantic import BaseModel
from pydantic_core import from_json, to_json

from aenv.client import first_contact
from aenv.client.backoff import backoff
from aenv.errors import EnvironmentError, EnvironmentTimeoutError, NetworkError, Unavailable, from_answer, without_json
from aenv.http.client import ClientResponse, HttpClient
from aenv.http.url import ServerUrl
from aenv.schema import paths
from aenv.schema.envhub import (
    MISSING_LIMIT,
    Access,
    AllGrants,
    EnvPage,
    EnvSummary,
    EnvVersion,
    Grants,
    Hub,
    Pushed,
    PushRequest,
    StorageUsage,
)
from aenv.tracing.waits import waiting_for

LONGEST_PAUSE = 5.0
BLOB_SECONDS = 300.0
"""Timeout for a blob: 8 MiB over a slow connection."""
OTHERS = 256
"""Users on whose behalf connections stay open; beyond that, the least recently used ones are closed."""


class HubClient(Hub):
    """See `aenv.schema.envhub.Hub`."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        retries: int = 6,
        behalf: str = "",
        certificates: str = "",
        restart: float | None = None,
    ) -> None:
        """``behalf``: the user to whose rights every request is limited.

        ``restart``: seconds that queries wait for a hub that answered before and at whose address nothing listens now;
        None: until the retries end.
        """
        bare = "://" not in url  # a full URL has the port of its scheme, a bare host the default port of a hub
        self.url = ServerUrl.parse(url, default_port=paths.HUB_PORT if bare else None)
        self._timeout = timeout
        self._retries = retries
        self._restart = restart
        headers = [("accept", "application/json")]
        if behalf:
            headers.append((paths.BEHALF_HEADER, quote(behalf, safe="")))
        self._http = HttpClient(self.url, token=token, headers=headers, certificates=certificates)
        self._others: dict[str, HubClient] = {}
        self._narrowed = functools.partial(
            HubClient, url, token, timeout=timeout, retries=retries, certificates=certificates, restart=restart
        )

    async def missing(self, digests: list[str]) -> list[str]:
        found: list[str] = []
        for start in range(0, len(digests), MISSING_LIMIT):
            body = {"digests": digests[start : start + MISSING_LIMIT]}
            found += (await self._data("POST", f"{paths.BLOBS}/missing", body))["digests"]
        return found

    async def put_blob(self, digest: str, data: bytes) -> None:
        await self._data("PUT", f"{paths.BLOBS}/{_part(digest)}", data)

    async def get_blob(self, digest: str) -> bytes:
        return (await self._answer("GET", f"{paths.BLOBS}/{_part(digest)}", None)).body

    async def push(self, request: PushRequest, force: bool = False) -> Pushed:
        path = f"{paths.ENVIRONMENTS}?force=true" if force else paths.ENVIRONMENTS
        return Pushed.model_validate(await self._data("POST", path, request))

    async def get(self, name: str, ref: str = "") -> EnvVersion:
        query = f"?{urlencode({'ref': ref})}" if ref else ""
        return EnvVersion.model_validate(await self._data("GET", f"{_env(name)}{query}"))

    async def versions(self, name: str, limit: int = 100, after: str | None = None) -> EnvPage:
        return await self._page(f"{_env(name)}/versions", {"limit": limit, "after": after})

    async def list(
        self,
        name: str | None = None,
        tags: list[str] | None = None,
        limit: int = 100,
        offset: int = 0,
        after: str | None = None,
    ) -> EnvPage:
        query = {"name": name, "tags": tags or [], "limit": limit, "offset": offset, "after": after}
        return await self._page(paths.ENVIRONMENTS, query)

    async def search(self, query: str, limit: int = 20, after: str | None = None) -> EnvPage:
        return await self._page(paths.SEARCH, {"q": query, "limit": limit, "after": after})

    async def release(self, name: str, version: str) -> EnvSummary:
        return await self._change(name, version, "release", None)

    async def deprecate(self, name: str, version: str, reason: str | None) -> EnvSummary:
        return await self._change(name, version, "deprecate", {"reason": reason})

    async def yank(self, name: str, version: str, reason: str | None) -> EnvSummary:
        return await self._change(name, version, "yank", {"reason": reason})

    async def delete(self, name: str, version: str, reason: str) -> None:
        await self._data("DELETE", f"{_env(name)}/versions/{_part(version)}?{urlencode({'reason': reason})}")

    async def set_public(self, name: str, public: bool) -> None:
        await self._data("PATCH", _env(name), {"public": public})

    async def grants(self, name: str) -> Grants:
        return Grants.model_validate(await self._data("GET", f"{_env(name)}/grants"))

    async def grant(self, name: str, user: str, access: Access) -> Grants:
        return await self._changed_grants("POST", f"{_env(name)}/grants", {"user": user, "access": access})

    async def revoke(self, name: str, user: str) -> Grants:
        return await self._changed_grants("DELETE", f"{_env(name)}/grants?{urlencode({'user': user})}")

    async def transfer(self, name: str, user: str) -> Grants:
        return await self._changed_grants("POST", f"{_env(name)}/transfer", {"user": user})

    async def namespaces(self) -> AllGrants:
        return [Grants.model_validate(each) for each in await self._data("GET", paths.NAMESPACES)]

    async def reserve(self, name: str, user: str) -> Grants:
        return await self._changed_grants("POST", paths.NAMESPACES, {"name": name, "user": user})

    async def unreserve(self, name: str) -> None:
        await self._data("DELETE", f"{paths.NAMESPACES}/{_part(name)}")

    async def grant_namespace(self, name: str, user: str, access: Access) -> Grants:
        where = f"{paths.NAMESPACES}/{_part(name)}/grants"
        return await self._changed_grants("POST", where, {"user": user, "access": access})

    async def revoke_namespace(self, name: str, user: str) -> Grants:
        where = f"{paths.NAMESPACES}/{_part(name)}/grants?{urlencode({'user': user})}"
        return await self._changed_grants("DELETE", where)

    async def usage(self, user: str = "") -> StorageUsage:
        query = f"?{urlencode({'user': user})}" if user else ""
        return StorageUsage.model_validate(await self._data("GET", f"{paths.USAGE}{query}"))

    async def set_quota(self, user: str, limit: int | None) -> StorageUsage:
        return StorageUsage.model_validate(await self._data("PUT", paths.QUOTAS, {"user": user, "limit": limit}))

    def on_behalf_of(self, user: str) -> HubClient:
        other = self._others.pop(user, None) or self._narrowed(behalf=user)
        self._others[user] = other
        if len(self._others) > OTHERS:
            self._others.pop(next(iter(self._others)))._http.close()
        return other

    async def close(self) -> None:
        self._http.close()
        for other in self._others.values():
            other._http.close()

    # --- requests

    async def _changed_grants(self, method: str, path: str, body: dict[str, Any] | None = None) -> Grants:
        return Grants.model_validate(await self._data(method, path, body))

    async def _page(self, path: str, query: dict[str, Any]) -> EnvPage:
        given = {key: value for key, value in query.items() if value is not None}
        return EnvPage.model_validate(await self._data("GET", f"{path}?{urlencode(given, doseq=True)}"))

    async def _change(self, name: str, version: str, what: str, body: dict[str, Any] | None) -> EnvSummary:
        path = f"{_env(name)}/versions/{_part(version)}/{what}"
        return EnvSummary.model_validate(await self._data("POST", path, body if body is not None else b""))

    async def _data(self, method: str, path: str, body: BaseModel | dict[str, Any] | bytes | None = None) -> Any:
        sent = body if body is None or isinstance(body, bytes) else to_json(body)
        answer = await self._answer(method, path, sent)
        try:
            return from_json(answer.body)["data"]
        except (ValueError, KeyError, TypeError):
            raise EnvironmentError(f"the server at {self.url} is not a hub") from None

    async def _answer(self, method: str, path: str, body: bytes | None) -> ClientResponse:
        began = time.monotonic()
        restart = self._restart if method == "GET" and not path.startswith(paths.BLOBS) else None
        with waiting_for(f"the hub at {self.url}"):
            for attempt in range(self._retries + 1):
                try:
                    return await self._once(method, path, body)
                except (NetworkError, Unavailable) as error:
                    hopeless = first_contact.is_hopeless(self.url, error, began, restart)
                    if attempt == self._retries or isinstance(error, TimeoutError) or hopeless:
                        raise _wrap_error(self.url, error, self._timeout) from error
                await asyncio.sleep(backoff(attempt, first=0.2, longest=LONGEST_PAUSE))
        raise AssertionError("unreachable")

    async def _once(self, method: str, path: str, body: bytes | None) -> ClientResponse:
        timeout = max(self._timeout, BLOB_SECONDS) if path.startswith(paths.BLOBS) else self._timeout
        answer = await self._http.request(method, path, body, timeout=timeout)
        first_contact.record(self.url)
        if answer.status < 400:
            return answer
        try:
            content = from_json(answer.body)
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise without_json(answer.status, self.url, "hub", "AENV_HUB_URL, or hub_backend of your settings")
        raise from_answer(answer.status, content)


def _wrap_error(url: ServerUrl, error: NetworkError | Unavailable, timeout: float) -> EnvironmentError:
    if isinstance(error, TimeoutError):
        return EnvironmentTimeoutError(
            f"the hub at {url} did not answer within {timeout:g} s", details={"budget": "request", "seconds": timeout}
        )
    hint = "Is it running? See where aenv looks for it: aenv config get hub_config.hub_backend"
    if isinstance(error, Unavailable):
        return Unavailable(f"the hub at {url} cannot answer just now: {error.message}", details=error.details)
    return Unavailable(f"the hub at {url} cannot be reached: {error.message}", details={"hint": hint})


def _env(name: str) -> str:
    return f"{paths.ENVIRONMENTS}/{_part(name)}"


def _part(text: str) -> str:
    return quote(text, safe=":")
