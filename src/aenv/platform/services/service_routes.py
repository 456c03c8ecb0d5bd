"""HTTP routes of services, with the JSON that existing clients expect."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from aenv.errors import InstanceEnded, NotFound
from aenv.http.messages import Answer, Request
from aenv.platform.gateway.log_stream import LogReader, log_answer
from aenv.platform.request_context import RequestContext, RouteEntry, body, ok, wait
from aenv.platform.services.reconciler import ServiceReconciler
from aenv.platform.services.services import Services
from aenv.schema import paths
from aenv.schema.instances import EnvService, EnvServiceCreateRequest, EnvServiceUpdateRequest


def service_routes(services: Services, base_of: Callable[[Request], str]) -> list[RouteEntry]:
    """Return the routes. ``base_of``: the platform's URL as the sender of a request reaches it."""
    routes = _Routes(services, base_of)
    base, one = paths.SERVICES, f"{paths.SERVICES}/{{name}}"
    return [
        ("POST", base, "service-create", routes.create),
        ("GET", f"{base}/list", "service-list", routes.list),
        ("GET", f"{one}/list", "service-list", routes.list),
        ("GET", f"{one}/logs", "service-logs", routes.logs),
        ("GET", f"{one}/events", "service-events", routes.events),
        ("GET", one, "service-get", routes.get),
        ("PUT", one, "service-update", routes.update),
        ("DELETE", one, "service-delete", routes.delete),
    ]


class _Routes:
    def __init__(self, services: Services, base_of: Callable[[Request], str]) -> None:
        self._services = services
        self._base_of = base_of

    async def create(self, context: RequestContext) -> Answer:
        request = body(EnvServiceCreateRequest, context.request)
        return ok(self._to_api(await self._services.create(request, context.caller), context))

    async def get(self, context: RequestContext) -> Answer:
        return ok(
            self._to_api(await self._services.get(context.name, context.caller, wait(context.one("wait"))), context)
        )

    async def list(self, context: RequestContext) -> Answer:
        found = await self._services.list_by_env(context.name or context.one("envName") or "*", context.caller)
        return ok([self._to_api(each, context) for each in found])

    async def update(self, context: RequestContext) -> Answer:
        request = body(EnvServiceUpdateRequest, context.request)
        return ok(self._to_api(await self._services.update(context.name, request, context.caller), context))

    async def delete(self, context: RequestContext) -> Answer:
        storage = context.one("deleteStorage") in ("true", "1")
        await self._services.delete(context.name, context.caller, storage=storage)
        return ok("Deleted successfully")

    async def events(self, context: RequestContext) -> Answer:
        forwarded = await self._services.forward(context.name, context.request, context.caller)
        if forwarded is not None:
            return forwarded
        return ok(await self._services.events(context.name, context.caller))

    async def logs(self, context: RequestContext) -> Answer:
        forwarded = await self._services.forward(context.name, context.request, context.caller)
        if forwarded is not None:
            return forwarded
        reconciler = await self._services.reconciler(context.name, context.caller)
        return log_answer(context, self._services.logs(reconciler), lambda: _log_tail(self._services, reconciler))

    def _to_api(self, service: EnvService, context: RequestContext) -> EnvService:
        """Add the URL by which the caller reaches the service; hide its variables from a read-only caller."""
        below = f"{paths.PORT}/{service.port}" if service.port else ""
        update: dict[str, object] = {
            "service_url": f"{self._base_of(context.request)}{paths.SERVICE_PATH}/{service.id}{below}"
        }
        if context.caller.role == "read-only":
            update["environment_variables"] = None
        return service.model_copy(update=update)


def _log_tail(services: Services, reconciler: ServiceReconciler) -> LogReader:
    """Return a function that gives the complete lines added since its last call, each with its replica's id."""
    positions: dict[str, int] = {}
    partial: dict[str, str] = {}

    def new_lines() -> str:
        if not services.runs(reconciler):
            raise NotFound(f"service {reconciler.record.id} is gone")
        output = ""
        for name in [replica.id for replica in reconciler.replicas if replica.id]:
            with contextlib.suppress(InstanceEnded, NotFound):
                text, positions[name] = services.log_since(name, positions.get(name, 0))
                lines = (partial.pop(name, "") + text).splitlines(keepends=True)
                if lines and not lines[-1].endswith("\n"):
                    partial[name] = lines.pop()
                output += "".join(f"[{name}] {line}" for line in lines)
        return output

    new_lines()  # skip what is there: it was sent already
    return new_lines
