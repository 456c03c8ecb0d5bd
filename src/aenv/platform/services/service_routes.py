"""The routes of services, with the JSON that existing clients know."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable

from aenv.errors import InstanceEnded, NotFound
from aenv.http.messages import Answer, Request
from aenv.platform.gateway.log_stream import News, log_answer
from aenv.platform.request_context import More, RequestContext, body, ok, wait
from aenv.platform.services.reconciler import ServiceReconciler
from aenv.platform.services.services import Services
from aenv.schema import paths
from aenv.schema.instances import EnvService, EnvServiceCreateRequest, EnvServiceUpdateRequest


def service_routes(services: Services, base_of: Callable[[Request], str]) -> list[More]:
    """``base_of``: the platform's own URL, for who asks."""
    routes = _Routes(services, base_of)
    base, one = re.escape(paths.SERVICES), r"(?P<name>[^/]+)"
    found = [
        ("POST", base, "service-create", routes.create),
        ("GET", f"{base}/list", "service-list", routes.list),
        ("GET", f"{base}/{one}/list", "service-list", routes.list),
        ("GET", f"{base}/{one}/logs", "service-logs", routes.logs),
        ("GET", f"{base}/{one}/events", "service-events", routes.events),
        ("GET", f"{base}/{one}", "service-get", routes.get),
        ("PUT", f"{base}/{one}", "service-update", routes.update),
        ("DELETE", f"{base}/{one}", "service-delete", routes.delete),
    ]
    return [(method, re.compile(path), action, route) for method, path, action, route in found]


class _Routes:
    def __init__(self, services: Services, base_of: Callable[[Request], str]) -> None:
        self._services = services
        self._base_of = base_of

    async def create(self, ask: RequestContext) -> Answer:
        wish = body(EnvServiceCreateRequest, ask.request)
        return ok(self._told(await self._services.create(wish, ask.caller), ask))

    async def get(self, ask: RequestContext) -> Answer:
        return ok(self._told(await self._services.get(ask.name, ask.caller, wait(ask.one("wait"))), ask))

    async def list(self, ask: RequestContext) -> Answer:
        found = await self._services.of_env(ask.name or ask.one("envName") or "*", ask.caller)
        return ok([self._told(each, ask) for each in found])

    async def update(self, ask: RequestContext) -> Answer:
        wish = body(EnvServiceUpdateRequest, ask.request)
        return ok(self._told(await self._services.update(ask.name, wish, ask.caller), ask))

    async def delete(self, ask: RequestContext) -> Answer:
        storage = ask.one("deleteStorage") in ("true", "1")
        await self._services.delete(ask.name, ask.caller, storage=storage)
        return ok("Deleted successfully")

    async def events(self, ask: RequestContext) -> Answer:
        elsewhere = await self._services.elsewhere(ask.name, ask.request, ask.caller)
        if elsewhere is not None:
            return elsewhere
        return ok(await self._services.events(ask.name, ask.caller))

    async def logs(self, ask: RequestContext) -> Answer:
        elsewhere = await self._services.elsewhere(ask.name, ask.request, ask.caller)
        if elsewhere is not None:
            return elsewhere
        keeper = await self._services.keeper(ask.name, ask.caller)
        return log_answer(ask, self._services.logs(keeper), lambda: _news(self._services, keeper))

    def _told(self, service: EnvService, ask: RequestContext) -> EnvService:
        """With the URL by which whoever asks reaches it; who may only look is not told its variables."""
        told: dict[str, object] = {"service_url": f"{self._base_of(ask.request)}{paths.SERVICE_PATH}/{service.id}"}
        if ask.caller.role == "read-only":
            told["environment_variables"] = None
        return service.model_copy(update=told)


def _news(services: Services, keeper: ServiceReconciler) -> News:
    """Whole lines that its replicas add, each with the replica's id."""
    places: dict[str, int] = {}
    rest: dict[str, str] = {}

    def news() -> str:
        if not services.keeps(keeper):
            raise NotFound(f"service {keeper.record.id} is gone")
        said = ""
        for name in [copy.id for copy in keeper.copies if copy.id]:
            with contextlib.suppress(InstanceEnded, NotFound):
                text, places[name] = services.log_since(name, places.get(name, 0))
                lines = (rest.pop(name, "") + text).splitlines(keepends=True)
                if lines and not lines[-1].endswith("\n"):
                    rest[name] = lines.pop()
                said += "".join(f"[{name}] {line}" for line in lines)
        return said

    news()  # what is there already was shown
    return news
