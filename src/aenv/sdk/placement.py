"""The source of an environment's instance: a server that was started by hand, or a platform that creates one."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from aenv.client import local_lease, parent_platform
from aenv.client.caller_variables import caller_variables
from aenv.client.instance_client import PATIENCE, InstanceClient
from aenv.errors import (
    AEnvError,
    EnvironmentError,
    InstanceEnded,
    InstanceUnreachable,
    InvalidUse,
    NotFound,
    UsageError,
)
from aenv.http.url import Planes, ServerUrl
from aenv.schema import paths
from aenv.tracing.logging import getLogger
from aenv.tracing.waits import waiting_for

if TYPE_CHECKING:
    from aenv.client.platform_client import ApiClient
    from aenv.schema.instances import EnvInstance, EnvPool, HubAccess
    from aenv.sdk.instance_group import InstanceGroup

log = getLogger("environment")

RELEASE_SECONDS = 10.0
STATUS_SECONDS = 3.0
"""Timeout for asking a platform whether an unreachable instance has ended."""
STATUS_PAUSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.0)
"""Seconds between two such polls: the platform may learn of an end a little later than the client."""
LOCAL_RETRIES = 1
"""Retries of requests to the local platform. A Unix socket loses nothing: no answer means no platform."""
CreateRequest = dict[str, Any]
RESOURCES = ("cpu", "memory", "storage", "gpu")
PER_ITEM = ("datasource", "environment_variables", "arguments", "labels")
"""Fields of a create request that may differ between the instances of a batch."""


class Placement(ABC):
    """Creates an instance, or finds one, and deletes it."""

    @abstractmethod
    async def create(self, request: CreateRequest) -> EnvInstance:
        """Request an instance; it may still be starting."""

    @abstractmethod
    async def attach(self, instance_id: str) -> EnvInstance:
        """Return an existing instance."""

    @abstractmethod
    async def disconnect(self) -> None:
        """Close the connection to the platform, and leave the instance running."""

    @abstractmethod
    async def renew(self, instance: EnvInstance, ttl: str) -> EnvInstance:
        """Restart the instance's time to live (TTL)."""

    @abstractmethod
    async def wait(self, instance: EnvInstance, timeout: float) -> EnvInstance:
        """Wait until the instance is running, and return its new state. Raises with the reason if it fails."""

    @abstractmethod
    async def refresh(self, instance: EnvInstance) -> EnvInstance:
        """Return the current state of the instance."""

    @abstractmethod
    def client(self, instance: EnvInstance) -> InstanceClient:
        """Return a client for calls to the instance."""

    @abstractmethod
    def mcp_address(self, instance: EnvInstance) -> tuple[str, str | None]:
        """Return URL and bearer token of the instance's MCP server, for other MCP clients."""

    @abstractmethod
    async def delete(self, instance: EnvInstance | None) -> None:
        """Delete the instance. A failure is logged, not raised: the instance then ends at its TTL."""

    async def logs(self, instance: EnvInstance, tail: int | None) -> str:
        """Return the last ``tail`` lines that the instance's tools wrote, or all that are kept."""
        raise UsageError("a server that was started by hand keeps no log; see the output of 'aenv run'")

    async def presign_url(self, instance: EnvInstance, port: int, minutes: int) -> str:
        """Return a URL of a port inside the instance."""
        return str(ServerUrl(instance.ip or "localhost", port))

    def unreachable(self, client: InstanceClient, error: InstanceUnreachable) -> InstanceUnreachable | None:
        """Return the error to raise when the instance is unreachable during start-up; None to keep polling."""
        return None

    async def why_ended(self, instance: EnvInstance, *, sent: bool) -> InstanceEnded | None:
        """Ask the platform why an unreachable instance has ended; None if it has not, or the reason is unknown.

        ``sent``: whether the failed call may have run.
        """
        return None


class ServerPlacement(Placement):
    """A server that was started by hand. Creates and deletes nothing."""

    def __init__(self, url: ServerUrl, token: str | None) -> None:
        self._url = url
        self._token = token

    async def create(self, request: CreateRequest) -> EnvInstance:
        from aenv.schema.instances import EnvInstance, EnvStatus

        for name in ("network", *RESOURCES):
            if request.get(name) is not None:
                raise UsageError(
                    f"{name}: AENV_INSTANCE_URL (or DUMMY_INSTANCE_IP) names a server that is already running; "
                    f"its {name} cannot be chosen"
                )
        return EnvInstance(id="test", status=EnvStatus.RUNNING, ip=self._url.host)

    async def attach(self, instance_id: str) -> EnvInstance:
        raise UsageError(
            "instance_id: AENV_INSTANCE_URL (or DUMMY_INSTANCE_IP) already names the instance; use only one of them"
        )

    async def disconnect(self) -> None:
        return

    async def renew(self, instance: EnvInstance, ttl: str) -> EnvInstance:
        raise UsageError("a server that was started by hand has no time to live")

    async def wait(self, instance: EnvInstance, timeout: float) -> EnvInstance:
        return instance

    async def refresh(self, instance: EnvInstance) -> EnvInstance:
        return instance

    def client(self, instance: EnvInstance) -> InstanceClient:
        return InstanceClient(self._url, token=self._token, patience=PATIENCE)

    def mcp_address(self, instance: EnvInstance) -> tuple[str, str | None]:
        return f"{self._url}{paths.MCP}", self._token

    async def delete(self, instance: EnvInstance | None) -> None:
        return

    def unreachable(self, client: InstanceClient, error: InstanceUnreachable) -> InstanceUnreachable | None:
        return InstanceUnreachable(
            f"nothing answers at {client.url} ({error.message}); start the environment there with 'aenv run', "
            "or unset AENV_INSTANCE_URL and DUMMY_INSTANCE_IP",
            details=error.details,
        )


class PlatformPlacement(Placement):
    """A platform that creates instances: a remote one, or the local one of this machine."""

    def __init__(
        self,
        planes: Planes | None,
        *,
        timeout: float,
        startup_timeout: float,
        max_retries: int,
        token: str | None,
        source: str | None = None,
    ) -> None:
        self._startup_timeout = startup_timeout
        self._planes = planes
        """None means the local platform, which is started on first use."""
        self._timeout = timeout
        self._max_retries = max_retries
        self._token = token
        self._source = source
        self._lease: str | None = None
        self._started_again = False
        self._api: ApiClient | None = None
        self.group: InstanceGroup | None = None
        """The batch that the instance belongs to, if any."""
        self.url = str(planes.control) if planes else "the local platform"

    def again(self) -> PlatformPlacement:
        """Return a placement of another instance on the same platform, in the same lease."""
        other = PlatformPlacement(
            self._planes,
            timeout=self._timeout,
            startup_timeout=self._startup_timeout,
            max_retries=self._max_retries,
            token=self._token,
            source=self._source,
        )
        other.url, other._lease = self.url, self._lease
        return other

    @property
    def lease(self) -> str | None:
        """The lease of its instances, on a local platform that was used."""
        return self._lease

    @property
    def is_local(self) -> bool:
        """True if instances are sandboxes on this machine."""
        return self._planes is None

    async def api(self) -> ApiClient:
        """Return the client of the control plane."""
        from aenv.client.platform_client import ApiClient

        if self._api is None:
            if self._planes is None:
                parent_platform.refuse_local()
                held = local_lease.lease()
                if held is None:
                    with waiting_for("the local platform to start"):
                        held = await asyncio.to_thread(local_lease.open_lease)
                self.url, self._lease = held.where.url, held.name
            retries = LOCAL_RETRIES if self.is_local else self._max_retries
            self._api = ApiClient(self.url, self._timeout, retries, self._token, share=self.is_local)
        return self._api

    async def create(self, request: CreateRequest) -> EnvInstance:
        api = await self.api()
        try:
            timeout = self._startup_timeout if self.is_local else None
            made = await api.create_env_instance(request["envName"], **self._complete(request), timeout=timeout)
        except InstanceUnreachable as error:
            if self.is_local and not self._started_again:
                self._started_again = True  # the local platform ended after it was found: start it again
                await api.close()
                self._api = None
                return await self.create(request)
            raise InstanceUnreachable(
                f"no platform at {self.url} ({error.message}); check AENV_SYSTEM_URL or aenv_url. Without both, "
                "Environment runs on this machine; with AENV_INSTANCE_URL, it uses a server of 'aenv run'",
                details=error.details,
            ) from error
        if request.get("network") is not None and made.network is None:
            await api.delete_env_instance(made.id)
            raise EnvironmentError(
                f"the platform at {self.url} does not support network=; leave it out, or run on this machine"
            )
        await self._check_resources(request, [made])
        return made

    async def create_many(self, requests: list[CreateRequest]) -> list[EnvInstance]:
        """Request several instances at once: one for each request, or fewer where the platform cannot do more.

        The requests may differ in the fields `PER_ITEM`.
        """
        api = await self.api()
        first = requests[0]
        differ = [name for name in PER_ITEM if any(each[name] != first[name] for each in requests)]
        items = [{name: _of_item(each[name]) for name in differ} for each in requests] if differ else None
        timeout = self._startup_timeout if self.is_local else None  # its bundle may have to be fetched first
        made = await api.create_env_instances(
            len(requests), envName=first["envName"], items=items, **self._complete(first), timeout=timeout
        )
        if items is not None and any(each.item is None for each in made):  # an earlier platform, which made copies
            await _delete_all(api, made)
            return []
        await self._check_resources(first, made)
        return made

    async def _check_resources(self, request: CreateRequest, made: list[EnvInstance]) -> None:
        """Raise if the platform has ignored the requested resources."""
        asked = [name for name in RESOURCES if request.get(name) is not None]
        if asked and any(each.resources is None for each in made):
            await _delete_all(await self.api(), made)
            raise EnvironmentError(f"the platform at {self.url} does not support {asked[0]}=; leave it out")

    async def create_pool(self, request: CreateRequest, size: int) -> EnvPool:
        """Keep instances like the requested one ready."""
        api = await self.api()
        wanted = ("datasource", "environment_variables", "arguments", "network", "mcp", "source", "hub", "fetching")
        fields = {name: value for name, value in self._complete(request).items() if name in wanted}
        return await api.create_env_pool(request["envName"], size, timeout=self._startup_timeout, **fields)

    def _complete(self, request: CreateRequest) -> CreateRequest:
        rest = {name: value for name, value in request.items() if name != "envName"}
        needs_hub = self._source is None or local_lease.opens_environments(self._source)
        hub = hub_access() if self.is_local and needs_hub else None
        own = {"hub": hub, "fetching": caller_variables() or None} if self.is_local else {}
        return {**rest, "source": self._source, "lease": self._lease, **own}

    async def wait(self, instance: EnvInstance, timeout: float) -> EnvInstance:
        from aenv.schema.instances import EnvStatus

        if instance.status == EnvStatus.RUNNING:
            return instance
        if self.group is not None:
            return await self.group.wait(await self.api(), instance.id, timeout)
        return await (await self.api()).wait_for_status(instance.id, timeout=timeout)

    async def attach(self, instance_id: str) -> EnvInstance:
        return await (await self.api()).get_env_instance(instance_id)

    async def disconnect(self) -> None:
        api, self._api = self._api, None
        if api is not None:
            await api.close()

    async def renew(self, instance: EnvInstance, ttl: str) -> EnvInstance:
        return await (await self.api()).renew_env_instance(instance.id, ttl)

    async def refresh(self, instance: EnvInstance) -> EnvInstance:
        return await (await self.api()).get_env_instance(instance.id, deleted=True)

    async def why_ended(self, instance: EnvInstance, *, sent: bool) -> InstanceEnded | None:
        def error(reason: str, fault: str | None = None, by: str | None = "lost") -> InstanceEnded:
            reason = f"{reason}; the call may have run" if sent else reason
            made = InstanceEnded.because(instance.id, reason, fault, ended_by=by)
            made.details["sent"] = sent
            return made

        try:
            async with asyncio.timeout(STATUS_SECONDS):
                for pause in STATUS_PAUSES:
                    now = await self.refresh(instance)
                    if now.status in ("Failed", "Terminated"):
                        return error(now.reason or str(now.status), now.fault, now.ended_by)
                    await asyncio.sleep(pause)
        except NotFound:
            return error("the platform no longer knows it; it may have been restarted")
        except InstanceUnreachable:
            if self.is_local:
                return error("the local platform that ran it has ended")
        except (AEnvError, TimeoutError):
            return None
        return None

    def client(self, instance: EnvInstance) -> InstanceClient:
        url = ServerUrl.parse(instance.data_url) if instance.data_url else None
        is_local = self._planes is None or self._planes.control.uds is not None
        if url is not None and (is_local or url.uds is None):  # a remote platform names no local socket
            # The instance's own address: if nothing listens there now, nothing will later.
            return InstanceClient(url, token=instance.token or self._token, patience=0.0)
        assert self._planes is not None
        headers = self.proxy_headers(instance)
        return InstanceClient(self._planes.data, token=self._token, headers=headers, patience=PATIENCE)

    @staticmethod
    def proxy_headers(instance: EnvInstance) -> dict[str, str]:
        """Return the headers that tell a gateway which instance a request is for."""
        headers = {paths.INSTANCE_HEADER: instance.id}
        if instance.ip:
            headers[paths.PROXY_HEADER] = f"http://{instance.ip}:{paths.DATA_PORT}"
        return headers

    def mcp_address(self, instance: EnvInstance) -> tuple[str, str | None]:
        if instance.mcp_url:
            return instance.mcp_url, instance.token
        if self._planes is None:
            raise InvalidUse("mcp_url: this instance was created without it; pass mcp=True to Environment")
        if instance.data_url and ServerUrl.parse(instance.data_url).uds is None:
            return f"{ServerUrl.parse(instance.data_url)}{paths.MCP}", instance.token or self._token
        return f"{self._planes.data}{paths.INSTANCE_PATH}/{instance.id}{paths.MCP}", self._token

    async def logs(self, instance: EnvInstance, tail: int | None) -> str:
        return await (await self.api()).get_instance_logs(instance.id, tail)

    async def presign_url(self, instance: EnvInstance, port: int, minutes: int) -> str:
        return await (await self.api()).presign_url(instance.id, port, minutes)

    async def delete(self, instance: EnvInstance | None) -> None:
        """Delete the instance, also while this task is being cancelled."""
        if instance is None and self._api is None:
            return
        api, self._api = await self.api(), None
        task = asyncio.ensure_future(_delete(api, instance, self.group))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task}, timeout=RELEASE_SECONDS)
            raise


def hub_access() -> HubAccess:
    """Return this process's hub settings for the local platform, which another process may have started."""
    from aenv import config
    from aenv.schema.instances import HubAccess
    from aenv.storage.open_url import data_folder

    hub = config.load().hub_config
    return HubAccess(
        url=hub.hub_backend,
        token=hub.api_key,
        timeout=hub.timeout,
        data=str(data_folder()),
        cache=str(config.cache_folder()),
        certificates=os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR") or "",
    )


def _of_item(value: Any) -> Any:
    """Return the value of a field of an item: None would mean that of all instances."""
    return {} if value is None else value


async def _delete_all(api: ApiClient, made: list[EnvInstance]) -> None:
    await asyncio.gather(*(api.delete_env_instance(each.id) for each in made))


async def _delete(api: ApiClient, instance: EnvInstance | None, group: InstanceGroup | None) -> None:
    try:
        if instance is not None:
            async with asyncio.timeout(RELEASE_SECONDS):
                if group is not None:
                    await group.delete(api, instance.id)
                else:
                    await api.delete_env_instance(instance.id)
    except (AEnvError, TimeoutError) as error:
        name = instance.id if instance else "?"
        log.warning("[ENV:%s] could not be deleted (%s); it will end at its time to live", name, error)
    finally:
        await api.close()
