"""The API of the local platform as the console needs it: with calls, the user's hub and the recorded episodes.

The local platform itself has none of these three: its clients call instances directly, read the hub's files and record
episodes in a folder.
"""

from __future__ import annotations

import asyncio

from pydantic_core import from_json, to_json

from aenv import config
from aenv.client import local_lease
from aenv.client.caller_variables import caller_variables
from aenv.client.platform_client import ApiClient
from aenv.console.local_episodes import episode_answer, is_episode_path
from aenv.console.remote_api import RemoteApi
from aenv.errors import AEnvError, Forbidden, InstanceEnded, InvalidArguments
from aenv.http.messages import Answer, Request
from aenv.hub.embedded import embedded_app
from aenv.hub.open_hub import HubLocation, hub_url, open_catalog
from aenv.schema import paths
from aenv.sdk.placement import hub_access
from aenv.trajectory.store import TrajectoryStore

HUB = "/api/v1/"


class LocalApi:
    """Answers requests with the local platform, which is started if need be and kept while this object is used."""

    def __init__(self) -> None:
        settings = config.load()
        self._platform: RemoteApi | None = None
        self._instances: dict[str, RemoteApi] = {}
        self._store = TrajectoryStore.open()
        remote = hub_url(settings)
        self._remote_hub = RemoteApi(remote, settings.hub_config.api_key or None) if remote else None
        self._catalog = None if remote else open_catalog(HubLocation.of())
        self._hub = embedded_app(self._catalog, None, only_loopback=True) if self._catalog is not None else None

    async def answer(self, request: Request) -> Answer:
        """Answer a request."""
        if is_episode_path(request.path):
            return await episode_answer(self._store, request)
        if request.path.startswith(HUB):
            return await self._hub_answer(request)
        platform = await self._running()
        if request.path.startswith(f"{paths.INSTANCE_PATH}/"):
            return await self._call(request)
        if request.method == "POST" and request.path == paths.INSTANCES:
            await self._complete(request)
        return await platform.answer(request)

    async def close(self) -> None:
        """Close connections and stores, and give up the hold on the platform."""
        for remote in (self._platform, self._remote_hub, *self._instances.values()):
            if remote is not None:
                await remote.close()
        if self._catalog is not None:
            await self._catalog.store.close()
            await self._catalog.blobs.close()
        await asyncio.to_thread(self._store.close)
        local_lease.drop()

    async def _running(self) -> RemoteApi:
        """Return the platform. The lease keeps it from ending for want of clients."""
        if local_lease.lease() is None or self._platform is None:
            if self._platform is not None:
                await self._platform.close()
            held = await asyncio.to_thread(local_lease.open_lease)
            self._platform = RemoteApi(held.where.url, None)
        return self._platform

    async def _hub_answer(self, request: Request) -> Answer:
        if self._remote_hub is not None:
            return await self._remote_hub.answer(request)
        assert self._hub is not None
        await _hold_body(request)
        return await self._hub(request)

    async def _call(self, request: Request) -> Answer:
        """Pass a call on to an instance, at the address that the platform gives its owner."""
        name, slash, rest = request.target.removeprefix(f"{paths.INSTANCE_PATH}/".encode()).partition(b"/")
        text = name.decode("latin-1")
        if text not in self._instances:
            held = local_lease.lease()
            async with ApiClient(held.where.url if held else "") as api:
                found = await api.get_env_instance(text)
            if not found.data_url:
                raise InstanceEnded(f"instance {text} cannot be called: it is {found.status}")
            self._instances[text] = RemoteApi(found.data_url, found.token)
        try:
            return await self._instances[text].answer(request, slash + rest)
        except AEnvError:
            await self._instances.pop(text).close()
            raise

    async def _complete(self, request: Request) -> None:
        """Add to a create request what the SDK adds: the user's hub, proxies and package index."""
        await _hold_body(request)
        try:
            wanted = from_json(request.body)
        except ValueError:
            raise InvalidArguments("the request is not JSON") from None
        if not isinstance(wanted, dict) or wanted.get("source"):
            raise Forbidden("the console opens environments of the hub, not folders of this machine")
        own = {"hub": hub_access().model_dump(), "fetching": caller_variables() or None}
        request.body = to_json({**wanted, **own})


async def _hold_body(request: Request) -> None:
    if request.stream is not None:
        request.body, request.stream = b"".join([data async for data in request.stream]), None
