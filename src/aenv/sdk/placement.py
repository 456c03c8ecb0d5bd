"""Where an environment's instance comes from: a server that somebody started, or a platform that makes one."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from aenv.client import local_lease
from aenv.client.caller_variables import of_caller
from aenv.client.instance_client import PATIENCE, InstanceClient
from aenv.errors import AEnvError, EnvironmentError, InstanceEnded, InstanceUnreachable, NotFound, UsageError
from aenv.http.url import Planes, ServerUrl
from aenv.schema import paths
from aenv.tracing.logging import getLogger

if TYPE_CHECKING:
    from aenv.client.platform_client import ApiClient
    from aenv.schema.instances import EnvInstance, HubAccess

log = getLogger("environment")

RELEASE_SECONDS = 10.0
ASK_SECONDS = 3.0
"""For a platform to say whether an instance that cannot be reached has ended."""
ASK_AGAIN = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.0)
"""Seconds between two such questions: news of an end may be on its way to the platform."""
LOCAL_RETRIES = 1
"""Nothing is lost on the way to the local platform: where it does not answer, it is not there."""
Wish = dict[str, Any]


class Placement(ABC):
    """Gives an instance, and takes it back."""

    @abstractmethod
    async def create(self, wish: Wish) -> EnvInstance:
        """Ask for one; it may still be starting."""

    @abstractmethod
    async def attach(self, instance_id: str) -> EnvInstance:
        """One that is there already."""

    @abstractmethod
    async def leave(self) -> None:
        """Let go of the way to the platform, and of nothing else."""

    @abstractmethod
    async def renew(self, instance: EnvInstance, ttl: str) -> EnvInstance:
        """Have its time to live count from now."""

    @abstractmethod
    async def wait(self, instance: EnvInstance, timeout: float) -> EnvInstance:
        """The same once it runs. Raises with the reason when it never will."""

    @abstractmethod
    async def look(self, instance: EnvInstance) -> EnvInstance:
        """The same as it is now."""

    @abstractmethod
    def client(self, instance: EnvInstance) -> InstanceClient:
        """The way to call it."""

    @abstractmethod
    async def delete(self, instance: EnvInstance | None) -> None:
        """End it. A failure is logged and not raised: its time to live ends it then."""

    async def logs(self, instance: EnvInstance, tail: int | None) -> str:
        """The last of what its tools wrote; so many lines, or all that is kept."""
        raise UsageError("a server that was started by hand keeps no log; see what 'aenv run' prints")

    async def presign_url(self, instance: EnvInstance, port: int, minutes: int) -> str:
        """A URL of a port inside."""
        return str(ServerUrl(instance.ip or "localhost", port))

    def unreachable(self, client: InstanceClient, error: InstanceUnreachable) -> InstanceUnreachable | None:
        """What to say at once when it cannot be reached while it starts; None to keep trying."""
        return None

    async def why_ended(self, instance: EnvInstance, *, sent: bool) -> InstanceEnded | None:
        """Ask the platform why an instance that cannot be reached has ended; None: it has not, or nothing is known.

        ``sent``: whether the call that failed may have run.
        """
        return None


class Started(Placement):
    """A server that somebody started by hand; nothing is created, nothing deleted."""

    def __init__(self, url: ServerUrl, token: str | None) -> None:
        self._url = url
        self._token = token

    async def create(self, wish: Wish) -> EnvInstance:
        from aenv.schema.instances import EnvInstance, EnvStatus

        if wish.get("network") is not None:
            raise UsageError(
                "network: DUMMY_INSTANCE_IP names a server that is running already; its network cannot be chosen"
            )
        return EnvInstance(id="test", status=EnvStatus.RUNNING, ip=self._url.host)

    async def attach(self, instance_id: str) -> EnvInstance:
        raise UsageError("instance_id: DUMMY_INSTANCE_IP names the one instance that there is")

    async def leave(self) -> None:
        return

    async def renew(self, instance: EnvInstance, ttl: str) -> EnvInstance:
        raise UsageError("a server that was started by hand has no time to live")

    async def wait(self, instance: EnvInstance, timeout: float) -> EnvInstance:
        return instance

    async def look(self, instance: EnvInstance) -> EnvInstance:
        return instance

    def client(self, instance: EnvInstance) -> InstanceClient:
        return InstanceClient(self._url, token=self._token, patience=PATIENCE)

    async def delete(self, instance: EnvInstance | None) -> None:
        return

    def unreachable(self, client: InstanceClient, error: InstanceUnreachable) -> InstanceUnreachable | None:
        return InstanceUnreachable(
            f"nothing answers at {client.url} ({error.message}); start the environment there with 'aenv run', "
            "or unset DUMMY_INSTANCE_IP",
            details=error.details,
        )


class OnPlatform(Placement):
    """An instance that a platform makes for us."""

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
        """None stands for the local platform, which is started on first use."""
        self._timeout = timeout
        self._max_retries = max_retries
        self._token = token
        self._source = source
        self._lease: str | None = None
        self._started_again = False
        self._api: ApiClient | None = None
        self.url = str(planes.control) if planes else "the local platform"

    @property
    def is_local(self) -> bool:
        """Whether instances are sandboxes of this machine."""
        return self._planes is None

    async def api(self) -> ApiClient:
        """The control plane."""
        from aenv.client.platform_client import ApiClient

        if self._api is None:
            if self._planes is None:
                held = local_lease.lease()
                if held is None:
                    held = await asyncio.to_thread(local_lease.open_lease)
                self.url, self._lease = held.where.url, held.name
            retries = LOCAL_RETRIES if self.is_local else self._max_retries
            self._api = ApiClient(self.url, self._timeout, retries, self._token, share=self.is_local)
        return self._api

    async def create(self, wish: Wish) -> EnvInstance:
        api = await self.api()
        try:
            timeout = self._startup_timeout if self.is_local else None
            made = await api.create_env_instance(wish["envName"], **self._complete(wish), timeout=timeout)
        except InstanceUnreachable as error:
            if self.is_local and not self._started_again:
                self._started_again = True  # it ended between two looks at it: start the next one
                await api.close()
                self._api = None
                return await self.create(wish)
            raise InstanceUnreachable(
                f"no platform at {self.url} ({error.message}); without AENV_SYSTEM_URL and aenv_url, Environment runs "
                "on this machine by itself, and with DUMMY_INSTANCE_IP it uses what 'aenv run' serves",
                details=error.details,
            ) from error
        if wish.get("network") is not None and made.network is None:
            await api.delete_env_instance(made.id)
            raise EnvironmentError(
                f"the platform at {self.url} does not choose networks for instances; leave network= away, or run on "
                "this machine"
            )
        return made

    async def create_many(self, wish: Wish, count: int) -> list[EnvInstance]:
        """Ask for several in one request."""
        api = await self.api()
        timeout = self._startup_timeout if self.is_local else None  # its files may have to be fetched first
        return await api.create_env_instances(count, envName=wish["envName"], **self._complete(wish), timeout=timeout)

    def _complete(self, wish: Wish) -> Wish:
        rest = {name: value for name, value in wish.items() if name != "envName"}
        hub = _hub_access() if self.is_local and self._source is None else None
        own = {"hub": hub, "fetching": of_caller() or None} if self.is_local else {}
        return {**rest, "source": self._source, "lease": self._lease, **own}

    async def wait(self, instance: EnvInstance, timeout: float) -> EnvInstance:
        from aenv.schema.instances import EnvStatus

        if instance.status == EnvStatus.RUNNING:
            return instance
        return await (await self.api()).wait_for_status(instance.id, timeout=timeout)

    async def attach(self, instance_id: str) -> EnvInstance:
        return await (await self.api()).get_env_instance(instance_id)

    async def leave(self) -> None:
        api, self._api = self._api, None
        if api is not None:
            await api.close()

    async def renew(self, instance: EnvInstance, ttl: str) -> EnvInstance:
        return await (await self.api()).renew_env_instance(instance.id, ttl)

    async def look(self, instance: EnvInstance) -> EnvInstance:
        return await (await self.api()).get_env_instance(instance.id, deleted=True)

    async def why_ended(self, instance: EnvInstance, *, sent: bool) -> InstanceEnded | None:
        def error(reason: str, fault: str | None = None, by: str | None = "lost") -> InstanceEnded:
            reason = f"{reason}; the call may have run" if sent else reason
            made = InstanceEnded.because(instance.id, reason, fault, ended_by=by)
            made.details["sent"] = sent
            return made

        try:
            async with asyncio.timeout(ASK_SECONDS):
                for pause in ASK_AGAIN:
                    now = await self.look(instance)
                    if now.status in ("Failed", "Terminated"):
                        return error(now.reason or str(now.status), now.fault, now.ended_by)
                    await asyncio.sleep(pause)
        except NotFound:
            return error("the platform does not know it any more; it may have been restarted")
        except InstanceUnreachable:
            if self.is_local:
                return error("the local platform that it ran on has ended")
        except (AEnvError, TimeoutError):
            return None
        return None

    def client(self, instance: EnvInstance) -> InstanceClient:
        url = ServerUrl.parse(instance.data_url) if instance.data_url else None
        if url is not None and (
            self._planes is None or url.uds is None
        ):  # a platform elsewhere names no socket of ours
            # Its own address: where nothing listens there, nothing will.
            return InstanceClient(url, token=instance.token or self._token, patience=0.0)
        assert self._planes is not None
        headers = self.proxy_headers(instance)
        return InstanceClient(self._planes.data, token=self._token, headers=headers, patience=PATIENCE)

    @staticmethod
    def proxy_headers(instance: EnvInstance) -> dict[str, str]:
        """What tells a gateway which instance is meant."""
        headers = {paths.INSTANCE_HEADER: instance.id}
        if instance.ip:
            headers[paths.PROXY_HEADER] = f"http://{instance.ip}:{paths.DATA_PORT}"
        return headers

    async def logs(self, instance: EnvInstance, tail: int | None) -> str:
        return await (await self.api()).get_instance_logs(instance.id, tail)

    async def presign_url(self, instance: EnvInstance, port: int, minutes: int) -> str:
        return await (await self.api()).presign_url(instance.id, port, minutes)

    async def delete(self, instance: EnvInstance | None) -> None:
        """End it, also when this task is being cancelled."""
        if instance is None and self._api is None:
            return
        api, self._api = await self.api(), None
        task = asyncio.ensure_future(_delete(api, instance))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task}, timeout=RELEASE_SECONDS)
            raise


def _hub_access() -> HubAccess:
    """This process's hub, for the local platform: it was started by another one, whose settings may differ."""
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


async def _delete(api: ApiClient, instance: EnvInstance | None) -> None:
    try:
        if instance is not None:
            async with asyncio.timeout(RELEASE_SECONDS):
                await api.delete_env_instance(instance.id)
    except (AEnvError, TimeoutError) as error:
        name = instance.id if instance else "?"
        log.warning("[ENV:%s] could not be deleted (%s); its time to live ends it", name, error)
    finally:
        await api.close()
