"""Services: environments that run until they are deleted, in replicas behind one URL."""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import UTC, datetime
from pathlib import Path

from aenv.errors import AEnvError, Conflict, InvalidArguments, NotFound, QuotaExceeded, UsageError
from aenv.http.messages import Answer, Request
from aenv.isolation.files import volumes
from aenv.platform.access.platform_tokens import Caller
from aenv.platform.gateway.peers import Peers
from aenv.platform.instances.instance_record import limits_of
from aenv.platform.instances.ledger import Ledger
from aenv.platform.instances.lifecycle import Instances
from aenv.platform.instances.requests import request_checks
from aenv.platform.instances.requests.env_sources import Sources
from aenv.platform.instances.requests.reserved_labels import refuse_reserved
from aenv.platform.services.reconciler import ServiceReconciler
from aenv.platform.services.service_requests import (
    check_port,
    check_replicas,
    check_size,
    env_of,
    replica_settings,
    service_name,
    updated_env,
)
from aenv.platform.services.service_runner import ServiceRunner
from aenv.platform.services.service_store import ServiceClaim, ServiceRecord, ServiceSpec, ServiceState, ServiceStore
from aenv.platform.services.storages import Storages
from aenv.schema.instances import (
    Env,
    EnvInstanceCreateRequest,
    EnvService,
    EnvServiceCreateRequest,
    EnvServiceUpdateRequest,
    InstanceEvent,
    ServiceStatus,
)
from aenv.schema.names import check_name

MOUNT_PATH = "/home/admin/data"


class Services:
    """All services of the platform, whichever server runs them."""

    def __init__(
        self,
        instances: Instances,
        sources: Sources,
        ledger: Ledger,
        folder: Path,
        *,
        grace: float = 10.0,
        peers: Peers | None = None,
    ) -> None:
        """``folder``: holds the storages. ``grace``: seconds that a replica has to finish its requests."""
        self._instances = instances
        self._sources = sources
        self._store = ServiceStore(ledger.store)
        self._storages = Storages(ledger.store, folder, instances.engine)
        self._peers = peers
        self.runner = ServiceRunner(instances, self._store, self._storages, ledger, grace)

    async def open(self) -> int:
        """Take over services whose server is gone; return how many."""
        return await self.runner.open()

    async def close(self, *, hand_over: bool = False) -> None:
        """Stop reconciling. The records stay, for the next server.

        ``hand_over``: keep the replicas running, for the next server with the same name.
        """
        await self.runner.close(hand_over=hand_over)

    # --- requests of callers

    async def create(self, request: EnvServiceCreateRequest, caller: Caller) -> EnvService:
        """Create a service, whose replicas start in the background. Idempotent by ``request_id``."""
        refuse_reserved(request.labels)
        request_checks.check_variables(request.environment_variables)
        request_checks.check_labels(request.labels, request.replicas or 1)
        for field, text in (("envName", request.envName), ("owner", request.owner), ("request_id", request.request_id)):
            request_checks.check_text(field, text or "")
        project = await self._sources.find(EnvInstanceCreateRequest(envName=request.envName), caller)
        env = env_of(project, request.envName)
        name = service_name(
            request.service_name, env, f"{caller.name}/{request.request_id}" if request.request_id else ""
        )
        known = await self._store.get(name)
        if (
            known is not None
            and request.request_id
            and (known.account, known.request_id) == (caller.name, request.request_id)
        ):
            return _to_api(known, await self._state(name))
        if known is not None:
            raise Conflict(f"service {name} already exists; choose another name")
        replicas = check_replicas(request.replicas or 1)
        settings = replica_settings(request)
        self._instances.quota.admit(caller, replicas)
        await self._instances.refresh_remote_usage(caller)
        self._instances.quota.check(caller, settings.apply_to(limits_of(project)), replicas)
        claim = await self._claim_storage(request, caller, name, env.partition("@")[0], replicas)
        now = _now()
        record = ServiceRecord(
            id=name, account=caller.name, role=caller.role, token_id=caller.token_id, allowance=caller.allowance,
            request_id=request.request_id, owner=request.owner, labels=request.labels, network=request.network,
            created_at=now, updated_at=now, replicas=replicas,
            target=ServiceSpec(env=env, variables=request.environment_variables or {}),
            cpus=settings.cpus, memory=settings.memory, disk=settings.disk, storage=claim,
            host=self._storages.host if claim else "", server=self.runner.server, port=check_port(request.port),
        )  # fmt: skip
        try:
            await self._store.add(record)
        except AEnvError:
            if claim is not None:
                await self._storages.release(caller.name, claim.name, name, delete=False)
            raise
        self.runner.start(record).add_event("created", f"by {caller.name}")
        self._count("create", env)
        return _to_api(record, ServiceState()).model_copy(update={"notices": list(project.notices) or None})

    async def get(self, name: str, caller: Caller, wait: float = 0.0) -> EnvService:
        """Return a service; ``wait``: for up to this many seconds until changes under way are done."""
        until = time.monotonic() + wait
        while True:
            record = await self._find(name, caller)
            reconciler = self.runner.get(name)
            left = until - time.monotonic()
            if left <= 0 or reconciler is None or reconciler.is_settled():
                return _to_api(record, await self._state(name))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await reconciler.round_done.wait()

    async def list_by_env(self, env: str, caller: Caller) -> list[EnvService]:
        """List the services of one environment (``name`` or ``name@version``), or all (``*``)."""
        visible = [record for record in await self._store.all() if caller.may_see(record.account)]
        found = [r for r in visible if env in ("*", r.target.env, r.target.env.partition("@")[0])]
        return [_to_api(record, await self._state(record.id)) for record in found]

    async def update(self, name: str, request: EnvServiceUpdateRequest, caller: Caller) -> EnvService:
        """Change the wanted state; replicas are replaced in the background."""
        request_checks.check_variables(request.environment_variables)
        async with self.runner.lock(name):
            record = await self._find(name, caller)
            env = await self._choose_env(record, request)
            variables = {**record.target.variables, **(request.environment_variables or {})}
            if request.replicas is not None:
                self._check_scale(record, check_replicas(request.replicas, least=0))
            if request.storage_size is not None:
                if record.storage is None:
                    raise UsageError(f"service {name} has no storage")
                await self._storages.grow(
                    record.account, record.storage.name, check_size("storage_size", request.storage_size)
                )

            def change(record: ServiceRecord) -> ServiceRecord:
                if record.ending:
                    raise NotFound(f"service {name} is being deleted")
                changed: dict[str, object] = {}
                if request.replicas is not None:
                    changed["replicas"] = request.replicas
                if request.storage_size is not None and record.storage is not None:
                    changed["storage"] = record.storage.model_copy(update={"size": request.storage_size})
                if (env, variables) != (record.target.env, record.target.variables):
                    number = record.newest + 1
                    target = ServiceSpec(revision=number, env=env, variables=variables)
                    changed |= {"target": target, "previous": record.previous or record.target, "newest": number}
                    changed["failed"] = None
                return record.model_copy(update={**changed, "updated_at": _now()}) if changed else record

            record = await self._store.change(name, change)
            reconciler = self.runner.get(name)
            if reconciler is not None:
                reconciler.add_event("update", f"by {caller.name}")
                reconciler.set_record(record)
                if request.storage_size is not None:
                    reconciler.measure_storage_soon()
        self._count("update", record.target.env)
        return _to_api(record, await self._state(name))

    async def delete(self, name: str, caller: Caller, *, storage: bool) -> None:
        """Delete a service. ``storage``: delete its storage as well."""
        async with self.runner.lock(name):
            record = await self._find(name, caller)
            record = await self._store.change(
                name, lambda record: record.model_copy(update={"ending": True, "ending_storage": storage})
            )
            if self.runner.get(name) is not None or self.runner.can_take(record):
                await self.runner.end(record)
        self._count("delete", record.target.env)

    async def events(self, name: str, caller: Caller) -> list[InstanceEvent]:
        """Return the events of a service, as far as this server has seen them."""
        await self._find(name, caller)
        reconciler = self.runner.get(name)
        return list(reconciler.events) if reconciler is not None else []

    async def reconciler(self, name: str, caller: Caller) -> ServiceReconciler:
        """Return the reconciler of a service that this server runs.

        Raises:
            NotFound: the caller has no such service.
            Conflict: another server runs it.
        """
        reconciler = self.runner.get(name)
        if reconciler is not None and caller.may_see(reconciler.record.account):
            return reconciler
        record = await self._find(name, caller)
        raise Conflict(f"service {name} is run by another server: {record.server or 'none yet'}")

    async def forward(self, name: str, request: Request, caller: Caller) -> Answer | None:
        """Forward a request to the server that runs the service; None if that is this one."""
        if self._peers is None or self.runner.get(name) is not None:
            return None
        record = await self._find(name, caller)
        return await self._peers.answer_at(record.server, request, f"of service {name}")

    def runs(self, reconciler: ServiceReconciler) -> bool:
        """Return True while this reconciler is in use."""
        return self.runner.get(reconciler.record.id) is reconciler

    def logs(self, reconciler: ServiceReconciler) -> str:
        """Return the end of the replicas' logs, and of the last ended one's; each line with the replica's id."""
        output = ""
        for name in dict.fromkeys([reconciler.last_lost, *(replica.id for replica in reconciler.replicas)]):
            with contextlib.suppress(NotFound):
                text = self._instances.logs(name)
                output += "".join(f"[{name}] {line}\n" for line in text.splitlines())
        return output

    def log_since(self, name: str, position: int) -> tuple[str, int]:
        """Return what a replica has logged since ``position``, and the position of its end."""
        return self._instances.log_since(name, position)

    # --- internals

    async def _find(self, name: str, caller: Caller) -> ServiceRecord:
        record = await self._store.get(name) if name.isascii() and name.isprintable() else None
        if record is None or not caller.may_see(record.account):
            raise NotFound(f"no service {name[:100]}")
        return record

    async def _state(self, name: str) -> ServiceState:
        reconciler = self.runner.get(name)
        return reconciler.state if reconciler is not None else await self._store.state(name)

    async def _claim_storage(
        self, request: EnvServiceCreateRequest, caller: Caller, service: str, env: str, replicas: int
    ) -> ServiceClaim | None:
        if request.pvc_name is None and request.storage_size is None:
            return None
        able = self._instances.engine.capabilities
        if not (able.volumes or able.storages):
            raise UsageError("this platform's engine cannot give an instance a storage")
        if replicas != 1:
            raise InvalidArguments(
                f"replicas: a service with storage has 1 replica, not {replicas}: a storage has one writer"
            )
        path = request.mount_path or MOUNT_PATH
        wrong = volumes.target_problem(path)
        if wrong is not None:
            raise InvalidArguments(f"mount_path: {wrong}")
        name = request.pvc_name or env
        try:
            check_name(name)
        except ValueError as error:
            raise InvalidArguments(f"pvc_name: {error}") from None
        size = None if request.storage_size is None else check_size("storage_size", request.storage_size)
        storage = await self._storages.take(caller.name, name, size, service)
        return ServiceClaim(name=name, size=storage.size, mount_path=path)

    def _check_scale(self, record: ServiceRecord, replicas: int) -> None:
        if record.storage is not None and replicas > 1:
            raise InvalidArguments(
                f"replicas: a service with storage has at most 1 replica, not {replicas}: a storage has one writer"
            )
        caller, more = record.caller, replicas - record.replicas
        limit, used = caller.allowance.instances, self._instances.quota.used(caller.token_id).instances
        if more > 0 and limit and used + more > limit:
            raise QuotaExceeded(f"the service's token uses {used} of {limit} instances, and this would be {more} more")
        if more > 0:
            self._instances.quota.admit(caller, more)

    async def _choose_env(self, record: ServiceRecord, request: EnvServiceUpdateRequest) -> str:
        runs_images = self._instances.engine.capabilities.images
        env = updated_env(record.target.env, request, runs_images=runs_images)
        if env == record.target.env:
            return env
        # As the service's account: its replicas run what that account may read.
        project = await self._sources.find(EnvInstanceCreateRequest(envName=env), record.caller)
        return env_of(project, env)

    def _count(self, operation: str, env: str) -> None:
        self._instances.metrics.count("service_operations_total", operation=operation, env_name=env.partition("@")[0])


def _to_api(record: ServiceRecord, state: ServiceState) -> EnvService:
    name, _, version = record.target.env.partition("@")
    status, reason = state.status, state.reason
    if record.ending:
        status = ServiceStatus.TERMINATED
    elif record.previous is not None:
        status = ServiceStatus.UPDATING
    return EnvService(
        id=record.id,
        env=Env(id=record.target.env, name=name, version=version, created_at=record.created_at,
                updated_at=record.created_at),
        status=status, created_at=record.created_at, updated_at=record.updated_at, replicas=record.replicas,
        available_replicas=state.available, owner=record.owner, environment_variables=record.target.variables or None,
        pvc_name=record.storage.name if record.storage else None, reason=reason or record.failed,
        labels=record.labels, revision=record.target.revision, restarts=state.restarts, instances=state.instances,
        mount_path=record.storage.mount_path if record.storage else None,
        storage_size=record.storage.size if record.storage else None, storage_used=state.storage_used,
        port=record.port,
    )  # fmt: skip


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
