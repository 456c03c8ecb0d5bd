"""The routes of services, with the JSON that existing clients know."""

from __future__ import annotations

import asyncio
import re

from aenv.api.asking import Answer, Ask, Route, body, number, ok, wait
from aenv.api.keeper import Keeper
from aenv.api.services import Services
from aenv.errors import InstanceEnded, NotFound
from aenv.runtime.messages import Message, Receive, Request, Scope, Send, Stream
from aenv.schema import paths
from aenv.schema.instance import EnvService, EnvServiceCreateRequest, EnvServiceUpdateRequest

FOLLOW_SECONDS = 0.25
_HOST = re.compile(r"[A-Za-z0-9.-]+(:[0-9]+)?|\[[0-9A-Fa-f:.]+\](:[0-9]+)?")


def service_routes(services: Services, prefix: str = "") -> list[tuple[str, str, str, Route]]:
    """Method, pattern of the path, action and route of each; ``prefix`` is what a proxy leaves before all paths."""
    routes = _Routes(services, prefix)
    base, one = re.escape(paths.SERVICES), r"(?P<name>[^/]+)"
    return [
        ("POST", base, "service-create", routes.create),
        ("GET", f"{base}/list", "service-list", routes.list),
        ("GET", f"{base}/{one}/list", "service-list", routes.list),
        ("GET", f"{base}/{one}/logs", "service-logs", routes.logs),
        ("GET", f"{base}/{one}/events", "service-events", routes.events),
        ("GET", f"{base}/{one}", "service-get", routes.get),
        ("PUT", f"{base}/{one}", "service-update", routes.update),
        ("DELETE", f"{base}/{one}", "service-delete", routes.delete),
    ]


class _Routes:
    def __init__(self, services: Services, prefix: str) -> None:
        self._services = services
        self._prefix = prefix

    async def create(self, ask: Ask) -> Answer:
        wish = body(EnvServiceCreateRequest, ask.request)
        return ok(self._told(await self._services.create(wish, ask.caller), ask))

    async def get(self, ask: Ask) -> Answer:
        return ok(self._told(await self._services.get(ask.name, ask.caller, wait(ask.one("wait"))), ask))

    async def list(self, ask: Ask) -> Answer:
        found = await self._services.of_env(ask.name or ask.one("envName") or "*", ask.caller)
        return ok([self._told(each, ask) for each in found])

    async def update(self, ask: Ask) -> Answer:
        wish = body(EnvServiceUpdateRequest, ask.request)
        return ok(self._told(await self._services.update(ask.name, wish, ask.caller), ask))

    async def delete(self, ask: Ask) -> Answer:
        storage = ask.one("deleteStorage") in ("true", "1")
        await self._services.delete(ask.name, ask.caller, storage=storage)
        return ok("Deleted successfully")

    async def events(self, ask: Ask) -> Answer:
        return ok(await self._services.events(ask.name, ask.caller))

    async def logs(self, ask: Ask) -> Answer:
        tail = number("tail", ask.one("tail"))
        keeper = await self._services.keeper(ask.name, ask.caller)
        text = self._services.logs(keeper)
        if tail is not None:
            text = "".join(text.splitlines(keepends=True)[-tail:]) if tail else ""
        if ask.one("follow") in (None, "", "0", "false"):
            return ok(text)
        return Stream(_Following(self._services, keeper, text))

    def _told(self, service: EnvService, ask: Ask) -> EnvService:
        """With the URL by which whoever asks reaches it; who may only look is not told its variables."""
        told: dict[str, object] = {"service_url": _base(ask.request, self._prefix, service.id)}
        if ask.caller.role == "read-only":
            told["environment_variables"] = None
        return service.model_copy(update=told)


def _base(request: Request, prefix: str, name: str) -> str | None:
    host = request.header(b"host").decode("latin-1")
    if not _HOST.fullmatch(host):
        return None
    scheme = "https" if request.header(b"x-forwarded-proto").lower() == b"https" else "http"
    return f"{scheme}://{host}{prefix}{paths.SERVICE_PATH}/{name}"


class _Following:
    """The logs of a service, and what is added to them."""

    def __init__(self, services: Services, keeper: Keeper, text: str) -> None:
        self._services = services
        self._keeper = keeper
        self._text = text

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        gone = asyncio.ensure_future(receive())
        headers = [(b"content-type", b"text/plain; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            await self._follow(gone, send)
        finally:
            gone.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _follow(self, gone: asyncio.Future[Message], send: Send) -> None:
        places: dict[str, int] = {}
        self._news(places, {})
        text, rest = self._text, dict[str, str]()
        while not gone.done() and self._services.keeps(self._keeper):
            if text:
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            await asyncio.wait({gone}, timeout=FOLLOW_SECONDS)
            text = self._news(places, rest)

    def _news(self, places: dict[str, int], rest: dict[str, str]) -> str:
        """Whole lines that were added since, by replica."""
        said = ""
        for name in [copy.id for copy in self._keeper.copies if copy.id]:
            try:
                text, places[name] = self._services.log_since(name, places.get(name, 0))
            except (InstanceEnded, NotFound):
                continue
            lines = (rest.pop(name, "") + text).splitlines(keepends=True)
            if lines and not lines[-1].endswith("\n"):
                rest[name] = lines.pop()
            said += "".join(f"[{name}] {line}" for line in lines)
        return said
