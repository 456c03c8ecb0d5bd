"""The platform's routes, with the envelope that existing clients know."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote

from pydantic import ValidationError as PydanticValidationError
from pydantic_core import to_json

from aenv._version import __version__
from aenv.api.instances import Instances
from aenv.errors import AEnvError, InvalidArguments, NotFound
from aenv.runtime.http import Message, Receive, Request, Response, Scope, Send, Stream
from aenv.schema import paths
from aenv.schema.instance import EnvInstanceCreateRequest

MAX_WAIT = 20.0
"""Seconds that a request for an instance's status waits at the most for it to be ready."""


class PlatformApp:
    """Answers requests to the control plane."""

    def __init__(self, instances: Instances) -> None:
        self._instances = instances

    async def __call__(self, request: Request) -> Response | Stream:
        """Answer one request."""
        try:
            return await self._route(request)
        except AEnvError as error:
            # Existing clients read a number in `code` and the words in `message`.
            body = {
                "success": False, "code": error.code, "message": error.message, "data": None, "error": error.message,
                "fault": error.fault, "details": error.details,
            }  # fmt: skip
            return Response(error.status, to_json(body))

    async def _route(self, request: Request) -> Response | Stream:
        method, path = request.method, request.path
        if path == paths.HEALTH:
            return _ok({"status": "healthy", "version": __version__})
        if (method, path) == ("POST", paths.LEASE):
            return Stream(self._lease)
        if (method, path) == ("POST", paths.INSTANCES):
            wish = _wish(request.body)
            if wish.count is not None:
                return _ok(await self._instances.create_many(wish, wish.count))
            return _ok(await self._instances.create(wish))
        if not path.startswith(f"{paths.INSTANCES}/"):
            raise NotFound(f"nothing at {method} {path}")
        name, _, rest = unquote(path.removeprefix(f"{paths.INSTANCES}/")).partition("/")
        if (method, rest) == ("GET", "list"):
            return _ok(await self._instances.list(name))
        if (method, rest) == ("GET", "logs"):
            return _ok(self._instances.logs(name))
        if (method, rest) == ("GET", ""):
            return _ok(await self._instances.get(name, _wait(request.query)))
        if (method, rest) == ("DELETE", ""):
            await self._instances.delete(name)
            return _ok("Deleted successfully")
        raise NotFound(f"nothing at {method} {path}")

    async def _lease(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Say its name, and hold it for as long as the connection is open."""
        name = self._instances.open_lease()
        try:
            headers = [(paths.LEASE_HEADER.encode(), name.encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            message: Message = {}
            while message.get("type") != "http.disconnect":
                message = await receive()
        finally:
            await self._instances.end_lease(name)


def _wait(query: bytes) -> float:
    try:
        return min(float(dict(parse_qsl(query.decode("latin-1"))).get("wait", "0")), MAX_WAIT)
    except ValueError:
        return 0.0


def _wish(body: bytes) -> EnvInstanceCreateRequest:
    try:
        return EnvInstanceCreateRequest.model_validate_json(body)
    except PydanticValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise InvalidArguments(f"{where}: {first['msg']}") from None


def _ok(data: Any) -> Response:
    return Response(200, to_json({"success": True, "code": 0, "message": "", "data": data}))
