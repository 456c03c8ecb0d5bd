"""Client of the control plane: create, find, wait for and delete instances and services."""

from __future__ import annotations

import asyncio
import codecs
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

from pydantic import BaseModel
from pydantic_core import from_json, to_json

from aenv.client import first_contact
from aenv.client.backoff import backoff
from aenv.errors import (
    ConfigError,
    EnvironmentError,
    EnvironmentTimeoutError,
    InstanceUnreachable,
    NotFound,
    NotJson,
    RateLimited,
    Unavailable,
    from_answer,
    without_json,
)
from aenv.http.client import (
    ClientResponse,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    HttpClient,
    shared,
)
from aenv.http.messages import MAX_ANSWER
from aenv.http.relay import Relay
from aenv.http.url import Planes
from aenv.schema import paths
from aenv.schema.instances import (
    EnvInstance,
    EnvInstanceCreateRequest,
    EnvPool,
    EnvPoolCreateRequest,
    EnvService,
    EnvServiceCreateRequest,
    EnvServiceUpdateRequest,
    EnvStatus,
    ForkOutcome,
    HubAccess,
    InstanceEvent,
    InstancePage,
)
from aenv.tracing.waits import waiting_for

if TYPE_CHECKING:
    from aenv.client.rollouts_client import RolloutsClient
    from aenv.client.trajectories_client import TrajectoriesClient

M = TypeVar("M", bound=BaseModel)

MAX_PAUSE = 10.0
POLL_FIRST, POLL_MOST = 0.02, 1.0
QUEUED = 0.9
"""Share of a create's timeout that may pass in a full platform's queue, so that its response arrives in time."""
_ENDED = (EnvStatus.FAILED, EnvStatus.TERMINATED)


class ApiClient:
    """Client of a platform. Existing code imports it as ``AEnvSchedulerClient``."""

    def __init__(
        self,
        base_url: str,
        timeout: float = 30.0,
        max_retries: int = 3,
        api_key: str | None = None,
        *,
        share: bool = False,
    ) -> None:
        """``share``: reuse this event loop's connections to the same platform. They carry no key."""
        self.base_url = base_url
        self.timeout = timeout
        self.max_retries = max_retries
        self.api_key = api_key
        self._share = share
        self._has_answered = False
        url = Planes.parse(base_url).control
        if share:
            self._http = shared(url)
        else:
            trace = ("env-instance-trace-id", str(uuid.uuid4()))
            self._http = HttpClient(url, token=api_key, headers=[("accept", "application/json"), trace])

    async def connect(self) -> None:
        """Do nothing: connections open on demand. Existing code calls this."""

    async def close(self) -> None:
        """Close all connections that are not shared."""
        if not self._share:
            self._http.close()

    async def __aenter__(self) -> ApiClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # --- instances

    async def create_env_instance(
        self,
        name: str,
        datasource: str = "",
        ttl: str = "",
        environment_variables: dict[str, str] | None = None,
        arguments: list[str] | None = None,
        owner: str | None = None,
        labels: dict[str, str] | None = None,
        mount_points: list[dict[str, Any]] | None = None,
        source: str | None = None,
        lease: str | None = None,
        hub: HubAccess | None = None,
        network: str | list[str] | None = None,
        keep_alive: bool | None = None,
        mcp: bool | None = None,
        fetching: dict[str, str] | None = None,
        *,
        cpu: str | None = None,
        memory: str | None = None,
        storage: str | None = None,
        gpu: int | None = None,
        forkable: bool | None = None,
        timeout: float | None = None,
    ) -> EnvInstance:
        """Create an instance of ``name[@version]``. ``timeout``: for platforms that answer once the instance runs."""
        fields = EnvInstanceCreateRequest(
            envName=name,
            datasource=datasource,
            ttl=ttl,
            environment_variables=environment_variables,
            arguments=arguments,
            owner=owner,
            labels=labels,
            mount_points=mount_points,
            request_id=str(uuid.uuid4()),
            source=source,
            lease=lease,
            hub=hub,
            network=network,
            keep_alive=keep_alive,
            mcp=mcp,
            fetching=fetching,
            cpu=cpu,
            memory=memory,
            storage=storage,
            gpu=gpu,
            forkable=forkable,
            queue_timeout=QUEUED * (self.timeout if timeout is None else timeout),
        )
        waiting = waiting_for(f"an instance of {name}", self._asks_about(fields.request_id or ""))
        return EnvInstance.model_validate(await self._data("POST", paths.INSTANCES, fields, timeout, waiting))

    def _asks_about(self, request_id: str) -> Callable[[], Awaitable[str]]:
        """Return a function that asks the platform what it is doing for a create request."""

        async def ask() -> str:
            path = f"{paths.ACTIVITY}?{urlencode({'request_id': request_id})}"
            answer = await self._http.request("GET", path, timeout=self.timeout)
            return str(_unwrap(answer)["waiting_for"])

        return ask

    async def create_env_instances(
        self, count: int, *, timeout: float | None = None, **fields: Any
    ) -> list[EnvInstance]:
        """Create several instances in one request; the fields are those of EnvInstanceCreateRequest."""
        request = EnvInstanceCreateRequest(count=count, request_id=str(uuid.uuid4()), **fields)
        waiting = waiting_for(f"{count} instances of {request.envName}", self._asks_about(request.request_id or ""))
        data = await self._data("POST", paths.INSTANCES, request, timeout, waiting)
        created = [data] if isinstance(data, dict) and "id" in data else _items(data)
        return [EnvInstance.model_validate(item) for item in created]

    async def get_env_instance(self, instance_id: str, *, deleted: bool = False) -> EnvInstance:
        """Return an instance; with ``deleted`` also one that was deleted within the last hour."""
        query = "?deleted=true" if deleted else ""
        return await self._model(EnvInstance, "GET", f"{paths.INSTANCES}/{_part(instance_id)}{query}")

    async def list_env_instances(
        self, pool_name: str | None = None, status: EnvStatus | str | None = None
    ) -> list[EnvInstance]:
        """Return the instances of one environment (``name`` or ``name@version``), or all."""
        data = await self._data("GET", f"{paths.INSTANCES}/{_part(pool_name or '*')}/list")
        items = [EnvInstance.model_validate(item) for item in _items(data)]
        return [item for item in items if status is None or item.status == status]

    async def page_env_instances(
        self,
        env_name: str | None = None,
        *,
        owner: str | None = None,
        labels: dict[str, str] | None = None,
        status: EnvStatus | str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> InstancePage:
        """Return a page of instances, the oldest first. ``next`` of a page is ``after`` of the following one."""
        fields = {"envName": env_name, "owner": owner, "status": status, "limit": limit, "after": after}
        query = [(name, str(value)) for name, value in fields.items() if value is not None]
        query += [("label", f"{name}={value}") for name, value in (labels or {}).items()]
        return await self._model(InstancePage, "GET", f"{paths.INSTANCES}/list?{urlencode(query)}")

    async def renew_env_instance(self, instance_id: str, ttl: str = "") -> EnvInstance:
        """Restart the time to live of an instance, with the same length or with ``ttl``."""
        path = f"{paths.INSTANCES}/{_part(instance_id)}/ttl"
        return EnvInstance.model_validate(await self._data("PUT", path, {"ttl": ttl}))

    async def fork_instance(
        self,
        instance_id: str,
        items: Sequence[Mapping[str, Any]],
        *,
        wait: float = 30.0,
        lease: str | None = None,
        keep_alive: bool | None = None,
    ) -> list[ForkOutcome]:
        """Fork a running instance or a checkpoint, once for each item; see `ForkItem` for their fields."""
        sent = {"items": list(items), "wait": wait, "lease": lease, "keep_alive": keep_alive}
        path = f"{paths.INSTANCES}/{_part(instance_id)}/fork"
        data = await self._data("POST", path, sent, timeout=wait + self.timeout, retry=False)
        return [ForkOutcome.model_validate(item) for item in _items(data)]

    async def checkpoint_instance(
        self,
        instance_id: str,
        name: str = "",
        *,
        ttl: str = "",
        wait: float = 30.0,
        lease: str | None = None,
        keep_alive: bool | None = None,
    ) -> EnvInstance:
        """Make a checkpoint of a running instance; it is deleted with `delete_env_instance`."""
        sent = {"name": name, "ttl": ttl, "wait": wait, "lease": lease, "keep_alive": keep_alive}
        path = f"{paths.INSTANCES}/{_part(instance_id)}/checkpoint"
        return EnvInstance.model_validate(
            await self._data("POST", path, sent, timeout=wait + self.timeout, retry=False)
        )

    async def rewind_instance(self, instance_id: str, checkpoint: str) -> EnvInstance:
        """Replace the state of a running instance by that of a checkpoint."""
        path = f"{paths.INSTANCES}/{_part(instance_id)}/rewind"
        return EnvInstance.model_validate(await self._data("POST", path, {"checkpoint": checkpoint}, retry=False))

    async def list_branches(self, instance_id: str) -> list[EnvInstance]:
        """Return the forks and checkpoints of an instance, and theirs, oldest first."""
        data = await self._data("GET", f"{paths.INSTANCES}/{_part(instance_id)}/branches")
        return [EnvInstance.model_validate(item) for item in _items(data)]

    async def get_instance_events(self, instance_id: str) -> list[InstanceEvent]:
        """Return the events of an instance, the oldest first."""
        data = await self._data("GET", f"{paths.INSTANCES}/{_part(instance_id)}/events")
        return [InstanceEvent.model_validate(item) for item in _items(data)]

    async def get_instance_logs(self, instance_id: str, tail: int | None = None) -> str:
        """Return the end of its log, which holds the output of its tools; ``tail``: number of lines."""
        query = "" if tail is None else f"?tail={tail}"
        return str(await self._data("GET", f"{paths.INSTANCES}/{_part(instance_id)}/logs{query}"))

    async def follow_instance_logs(self, instance_id: str, tail: int | None = None) -> AsyncIterator[str]:
        """Yield its log, past and new, until it ends."""
        async for text in self._follow(f"{paths.INSTANCES}/{_part(instance_id)}/logs", tail):
            yield text

    async def follow_service_logs(self, service_id: str, tail: int | None = None) -> AsyncIterator[str]:
        """Yield the logs of its replicas, past and new, until the service is deleted."""
        async for text in self._follow(f"{paths.SERVICES}/{_part(service_id)}/logs", tail):
            yield text

    async def _follow(self, place: str, tail: int | None) -> AsyncIterator[str]:
        url = Planes.parse(self.base_url).control
        query = "follow=true" if tail is None else f"follow=true&tail={tail}"
        path = f"{url.prefix}{place}?{query}"
        token = f"authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
        relay = Relay(url)
        try:
            answer = await relay.send(f"GET {path} HTTP/1.1\r\nhost: {url.authority}\r\n{token}".encode(), b"")
            if answer.status != 200:
                _unwrap(ClientResponse(answer.status, await answer.read(MAX_ANSWER), {}))
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            async for part in answer.chunks():
                yield decoder.decode(part)
        except ConnectFailed as error:
            raise InstanceUnreachable(error.message) from error
        finally:
            relay.close()

    async def delete_env_instance(self, instance_id: str) -> bool:
        """Delete an instance. Returns False if it was gone already."""
        try:
            await self._data("DELETE", f"{paths.INSTANCES}/{_part(instance_id)}")
        except NotFound:
            return False
        return True

    async def delete_env_instances(self, instance_ids: list[str]) -> dict[str, str]:
        """Delete several instances of a local platform. Returns the errors, by id; those gone already have none."""
        data = await self._data("POST", paths.INSTANCES_DELETE, {"ids": instance_ids})
        return {str(name): str(error) for name, error in data.items()} if isinstance(data, dict) else {}

    async def wait_for_any(self, instance_ids: list[str]) -> tuple[list[EnvInstance], list[str]]:
        """Wait until one of these instances of a local platform is not starting any more.

        Returns those that are not, and the ids of those that do not exist. Both are empty after half of the timeout for
        requests.
        """
        asked = {"ids": instance_ids, "seconds": self.timeout / 2}
        data = await self._data("POST", paths.INSTANCES_WAIT, asked)
        return [EnvInstance.model_validate(item) for item in data["started"]], list(data["missing"])

    async def wait_for_status(
        self,
        instance_id: str,
        target_status: EnvStatus | str = EnvStatus.RUNNING,
        timeout: float = 300.0,
        check_interval: float = POLL_MOST,
    ) -> EnvInstance:
        """Wait until the instance has that status. A failed or ended instance is reported at once."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        pause = min(POLL_FIRST, check_interval)

        async def ask() -> str:
            answer = await self._http.request("GET", f"{paths.INSTANCES}/{_part(instance_id)}", timeout=self.timeout)
            return str(_unwrap(answer).get("reason") or "")

        name = instance_id.rpartition("-")[0] or instance_id
        with waiting_for(f"an instance of {name}", ask):
            return await self._poll(instance_id, target_status, timeout, deadline, pause, check_interval)

    async def _poll(
        self, instance_id: str, target_status: str, timeout: float, deadline: float, pause: float, check_interval: float
    ) -> EnvInstance:
        loop = asyncio.get_running_loop()
        while True:
            left = max(0.0, min(deadline - loop.time(), self.timeout / 2))
            instance = await self._model(EnvInstance, "GET", f"{paths.INSTANCES}/{_part(instance_id)}?wait={left:.3f}")
            if instance.status == target_status:
                return instance
            if instance.status in _ENDED:
                raise failed_to_start(instance)
            if loop.time() + pause > deadline:
                raise EnvironmentTimeoutError(
                    f"instance {instance_id} is still {instance.status} after {timeout:g} s",
                    details={"budget": "startup", "seconds": timeout},
                )
            await asyncio.sleep(pause)
            pause = min(pause * 2, check_interval)

    async def presign_url(self, instance_id: str, port: int, expiration_time_in_minutes: int = 5) -> str:
        """Return a short-lived URL of a port inside the instance."""
        fields = {"port": port, "expiration_time_in_minutes": expiration_time_in_minutes}
        data = await self._data("POST", f"{paths.INSTANCES}/{_part(instance_id)}/presign-url", fields)
        return str(data["url"])

    # --- services

    async def create_env_service(
        self,
        name: str,
        service_name: str | None = None,
        replicas: int = 1,
        environment_variables: dict[str, str] | None = None,
        owner: str | None = None,
        pvc_name: str | None = None,
        mount_path: str | None = None,
        storage_size: str | None = None,
        port: int | None = None,
        cpu_request: str | None = None,
        cpu_limit: str | None = None,
        memory_request: str | None = None,
        memory_limit: str | None = None,
        ephemeral_storage_request: str | None = None,
        ephemeral_storage_limit: str | None = None,
        **fields: Any,
    ) -> EnvService:
        """Create a service of ``name[@version]``; further fields are those of EnvServiceCreateRequest."""
        request = EnvServiceCreateRequest(
            envName=name,
            service_name=service_name,
            replicas=replicas,
            environment_variables=environment_variables,
            owner=owner,
            pvc_name=pvc_name,
            mount_path=mount_path,
            storage_size=storage_size,
            port=port,
            cpu_request=cpu_request,
            cpu_limit=cpu_limit,
            memory_request=memory_request,
            memory_limit=memory_limit,
            ephemeral_storage_request=ephemeral_storage_request,
            ephemeral_storage_limit=ephemeral_storage_limit,
            **{"request_id": str(uuid.uuid4()), **fields},
        )
        return await self._model(EnvService, "POST", paths.SERVICES, request)

    async def get_env_service(self, service_id: str, *, wait: float = 0.0) -> EnvService:
        """Return a service; ``wait``: seconds to wait for an ongoing change to finish."""
        query = f"?wait={wait:.3f}" if wait else ""
        return await self._model(EnvService, "GET", f"{paths.SERVICES}/{_part(service_id)}{query}")

    async def get_service_logs(self, service_id: str, tail: int | None = None) -> str:
        """Return the end of its replicas' logs, each line prefixed with the replica's id."""
        query = "" if tail is None else f"?tail={tail}"
        return str(await self._data("GET", f"{paths.SERVICES}/{_part(service_id)}/logs{query}"))

    async def get_service_events(self, service_id: str) -> list[InstanceEvent]:
        """Return the events of a service, the oldest first."""
        data = await self._data("GET", f"{paths.SERVICES}/{_part(service_id)}/events")
        return [InstanceEvent.model_validate(item) for item in _items(data)]

    async def list_env_services(self, env_name: str | None = None) -> list[EnvService]:
        """Return the services of one environment, or all."""
        data = await self._data("GET", f"{paths.SERVICES}/{_part(env_name or '*')}/list")
        return [EnvService.model_validate(item) for item in _items(data)]

    async def update_env_service(
        self,
        service_id: str,
        replicas: int | None = None,
        image: str | None = None,
        environment_variables: dict[str, str] | None = None,
        *,
        version: str | None = None,
        storage_size: str | None = None,
    ) -> EnvService:
        """Change a service. None leaves a field as it is; variables are merged into the existing ones."""
        request = EnvServiceUpdateRequest(
            replicas=replicas,
            image=image,
            environment_variables=environment_variables,
            version=version,
            storage_size=storage_size,
        )
        return await self._model(EnvService, "PUT", f"{paths.SERVICES}/{_part(service_id)}", request)

    async def delete_env_service(self, service_id: str, delete_storage: bool = False) -> bool:
        """Delete a service, and its storage if ``delete_storage``. Returns False if it was gone already."""
        query = "?deleteStorage=true" if delete_storage else ""
        try:
            await self._data("DELETE", f"{paths.SERVICES}/{_part(service_id)}{query}")
        except NotFound:
            return False
        return True

    # --- warm pools

    async def create_env_pool(self, name: str, size: int, *, timeout: float | None = None, **fields: Any) -> EnvPool:
        """Keep ``size`` instances of ``name[@version]`` ready; the fields are those of EnvPoolCreateRequest."""
        request = EnvPoolCreateRequest(envName=name, size=size, **fields)
        return EnvPool.model_validate(await self._data("POST", paths.POOLS, request, timeout))

    async def list_env_pools(self) -> list[EnvPool]:
        """Return the warm pools."""
        return [EnvPool.model_validate(item) for item in _items(await self._data("GET", f"{paths.POOLS}/list"))]

    async def delete_env_pool(self, name: str) -> None:
        """End the warm pool of ``name[@version]``.

        Raises:
            NotFound: there is none.
        """
        await self._data("DELETE", f"{paths.POOLS}/{_part(name)}")

    # --- rollouts

    @property
    def rollouts(self) -> RolloutsClient:
        """Rollouts that the platform runs."""
        from aenv.client.rollouts_client import RolloutsClient  # only few programs need it

        return RolloutsClient(self)

    @property
    def trajectories(self) -> TrajectoriesClient:
        """Recorded episodes that the platform keeps."""
        from aenv.client.trajectories_client import TrajectoriesClient

        return TrajectoriesClient(self)

    # --- requests

    async def data(self, method: str, path: str, body: BaseModel | None = None) -> Any:
        """Send a request and return the ``data`` of its response."""
        return await self._data(method, path, body)

    async def _model(self, model: type[M], method: str, path: str, body: BaseModel | None = None) -> M:
        return model.model_validate(await self._data(method, path, body))

    async def _data(
        self,
        method: str,
        path: str,
        body: BaseModel | dict[str, Any] | None = None,
        timeout: float | None = None,
        waiting: waiting_for | None = None,
        *,
        retry: bool = True,
    ) -> Any:
        """Send a request and return the ``data`` of its response. Retries are safe: a create carries a request id.

        ``waiting``: what to show while it takes long. ``retry``: False for what must not happen twice.
        """
        with waiting or waiting_for(f"the platform at {self.base_url}"):
            return await self._retried(method, path, body, timeout, self.max_retries if retry else 0)

    async def _retried(
        self, method: str, path: str, body: BaseModel | dict[str, Any] | None, timeout: float | None, retries: int
    ) -> Any:
        seconds = self.timeout if timeout is None else timeout
        try:
            sent = None if body is None else to_json(body, exclude_none=True)
        except ValueError as error:  # a lone surrogate in a string
            raise NotJson(f"{method} {path}: the request is not JSON, so nothing was sent: {error}") from None
        began = time.monotonic()
        for attempt in range(retries + 1):
            try:
                answer = await self._http.request(method, path, sent, timeout=seconds)
                self._has_answered = True
                first_contact.record(self.base_url)
                return _unwrap(answer, self.base_url)
            except (ConnectFailed, ConnectionLost, RateLimited, Unavailable) as error:
                if "unknown_host" in error.details and not self._has_answered:  # a wrong address, which no retry helps
                    raise ConfigError(
                        f"there is no host '{error.details['unknown_host']}': check the address of the platform, "
                        f"{self.base_url} (aenv_url, AENV_SYSTEM_URL)"
                    ) from error
                if "hub" in error.details:  # the platform has waited for its hub already
                    raise
                if attempt == retries or first_contact.is_hopeless(self.base_url, error, began):
                    if isinstance(error, ConnectFailed | ConnectionLost):
                        raise InstanceUnreachable(error.message) from error
                    raise
                asked = error.details.get("retry_after")
                await asyncio.sleep(backoff(attempt, first=0.1, longest=MAX_PAUSE, asked=asked))
            except DeadlineExceeded as error:
                starting = timeout is not None
                raise EnvironmentTimeoutError(
                    f"the instance did not start within {seconds:g} s; startup_timeout sets the limit"
                    if starting
                    else f"{method} {path}: no answer within {seconds:g} s",
                    details={"budget": "startup" if starting else "request", "seconds": seconds},
                ) from error
        raise AssertionError("unreachable")


def _unwrap(answer: ClientResponse, url: str = "the platform") -> Any:
    try:
        body = from_json(answer.body)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        if answer.status >= 400:
            raise without_json(answer.status, url, "platform", "AENV_SYSTEM_URL, or system_url of your settings")
        raise EnvironmentError(f"{url} answered without the JSON of a platform (HTTP {answer.status})")
    if answer.status >= 400 or body.get("success") is False:
        error = from_answer(answer.status, body)
        if b"retry-after" in answer.headers:
            error.details["retry_after"] = answer.headers[b"retry-after"].decode("latin-1")
        raise error
    return body.get("data")


def _items(data: Any) -> list[Any]:
    """Return the items of a list, which comes bare, as an object with ``items``, or as null when empty."""
    if isinstance(data, dict):
        data = data.get("items")
    return data or []


def failed_to_start(instance: EnvInstance) -> EnvironmentError:
    """Return the error for an instance that has failed or ended."""
    message = f"instance {instance.id} is {instance.status}: {instance.reason or 'no reason given'}"
    return from_answer(500, {"code": instance.error_code, "message": message})


def _part(text: str) -> str:
    return quote(text, safe="*@")
