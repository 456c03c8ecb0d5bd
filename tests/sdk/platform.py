"""A small platform for tests: the routes of the control plane, real instances, and injected faults."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from pydantic_core import from_json, to_json

from aenv.authoring.declarations import Registry
from aenv.http.messages import Request, Response
from aenv.http.server import HttpServer
from tests.conftest import served

Fault = Callable[[Request], Response | None]


class Platform:
    """Creates, gets, lists and deletes instances; each one is a runtime on its own port."""

    def __init__(self, registry: Registry) -> None:
        self.url = ""
        self.created: list[dict[str, Any]] = []
        self.instances: dict[str, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.headers: list[dict[bytes, bytes]] = []
        self.faults: list[Fault] = []
        self.polls_until_running = 1
        self.fate = ("Running", None)
        self._registry = registry
        self._numbers = itertools.count(1)
        self._by_request: dict[str, str] = {}
        self._creating = asyncio.Lock()
        self._running = AsyncExitStack()

    async def __call__(self, request: Request) -> Response:
        self.requests.append(f"{request.method} {request.path}")
        self.headers.append(dict(request.headers))
        if self.faults:
            answer = self.faults.pop(0)(request)
            if answer is not None:
                return answer
        parts = request.path.strip("/").split("/")
        if (request.method, request.path) == ("POST", "/env-instance"):
            return await self._create(from_json(request.body))
        if request.method == "GET" and parts[-1] == "list":
            return _ok(list(self.instances.values()) or None)
        instance = self.instances.get(parts[1])
        if instance is None:
            return _error(404, f"no instance {parts[1]}")
        if request.method == "DELETE":
            del self.instances[parts[1]]
            return _ok("Deleted successfully")
        if parts[-1] == "presign-url":
            return _ok({"url": f"{self.url}/{parts[1]}/{from_json(request.body)['port']}"})
        instance["polls"] += 1
        if instance["polls"] >= self.polls_until_running:
            instance["status"], instance["reason"] = self.fate
        return _ok(instance)

    async def _create(self, body: dict[str, Any]) -> Response:
        async with self._creating:  # a retry may arrive while the first request is still in progress
            name = self._by_request.get(body["request_id"])
            if name is None:
                self.created.append(body)
                name = f"{body['envName'].partition('@')[0]}-{next(self._numbers)}"
                self._by_request[body["request_id"]] = name
                url = await self._running.enter_async_context(served(self._registry, token=f"token-of-{name}"))
                self.instances[name] = {
                    "id": name, "status": "Creating", "ip": "127.0.0.1", "polls": 0, "reason": None,
                    "created_at": "2026-01-01T00:00:00Z", "updated_at": "", "data_url": url,
                    "token": f"token-of-{name}",
                }  # fmt: skip
            return _ok(self.instances[name])

    async def stop_instances(self) -> None:
        await self._running.aclose()


@asynccontextmanager
async def platform(registry: Registry) -> AsyncIterator[Platform]:
    made = Platform(registry)
    server = HttpServer(made, max_body=1 << 20)
    listener = await server.listen(host="127.0.0.1", port=0)
    made.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        await server.close(1.0)
        await made.stop_instances()


def _ok(data: Any) -> Response:
    return Response(200, to_json({"success": True, "code": 0, "message": "", "data": data}))


def _error(status: int, message: str) -> Response:
    return Response(status, to_json({"success": False, "code": status, "message": message, "data": None}))


def unavailable(request: Request) -> Response:
    return Response(503, b'{"success":false,"code":503,"message":"busy"}', b"retry-after: 0\r\n")
