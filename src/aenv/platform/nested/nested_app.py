"""The platform as an instance sees it: create other instances, call them, and delete them. Nothing else is reachable.

Requests come over connections that the platform has opened to one instance (`aenv.platform.nested.tunnels`), so that
the connection says who asks. Tokens, and headers that name users or addresses, mean nothing here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import parse_qsl

from aenv.errors import AEnvError, Forbidden, NotFound, TooLarge
from aenv.http.messages import Answer, BodyStream, Request
from aenv.platform.access.audit_log import AuditLog
from aenv.platform.access.platform_tokens import Caller
from aenv.platform.gateway.gateway import PROXY, Gateway
from aenv.platform.instances.instance_record import InstanceRecord
from aenv.platform.instances.lifecycle import Instances
from aenv.platform.nested.opening import Opening
from aenv.platform.openapi import TtlRequest
from aenv.platform.request_context import body, ok, refusal, wait
from aenv.schema import paths
from aenv.schema.instances import EnvInstance, EnvInstanceCreateRequest

MAX_REQUEST = 1024 * 1024
"""Bytes of a request to the control plane."""
_ADDRESS = dict.fromkeys(("ip", "data_url", "token", "mcp_url", "account"))


class NestedApp:
    """Handles the requests of one instance."""

    def __init__(
        self,
        instances: Instances,
        gateway: Gateway,
        parent: InstanceRecord,
        refresh: Callable[[Caller], Awaitable[Caller]] | None,
        audit: AuditLog | None,
    ) -> None:
        """``refresh``: returns the creator of the parent with the rights of now. None: there are no tokens."""
        self._instances = instances
        self._gateway = gateway
        self._parent = parent
        self._refresh = refresh
        self._audit = audit

    async def __call__(self, request: Request) -> Answer:
        """Handle a request."""
        try:
            return await (self._call(request) if Gateway.wants(request) else self._control(request))
        except AEnvError as error:
            self._instances.metrics.count("refused_total", code=error.code)
            return refusal(error)

    async def _call(self, request: Request) -> Answer:
        """Forward a call to an instance that the parent has opened."""
        if request.header(PROXY):
            raise Forbidden(f"{paths.PROXY_HEADER} is not for code in an instance; send {paths.INSTANCE_HEADER}")
        name, target = Gateway.named(request)
        if not target.startswith(b"/"):
            raise Forbidden("a request to an instance must name a path, not an absolute URL")
        return await self._gateway.forward(self._child(name or ""), request, target)

    async def _control(self, request: Request) -> Answer:
        if request.stream is not None:
            request.body, request.stream = await _read(request.stream), None
        if (request.method, request.path) == ("POST", paths.INSTANCES):
            return ok(await self._create(body(EnvInstanceCreateRequest, request)))
        name, _, rest = request.path.removeprefix(f"{paths.INSTANCES}/").partition("/")
        action = (request.method, rest)
        if not request.path.startswith(f"{paths.INSTANCES}/") or action not in _ACTIONS:
            raise Forbidden(f"{request.method} {request.path} is not available to code in an instance")
        child, caller = self._child(name), self._parent.creator
        if action == ("DELETE", ""):
            await self._instances.delete(child.id, caller)
            self._record("delete", child.id)
            return ok("Deleted successfully")
        if action == ("PUT", "ttl"):
            ttl = body(TtlRequest, request).ttl if request.body else ""
            renewed = await self._instances.renew(child.id, ttl, caller)
            self._record("renew", child.id)
            return ok(_without_address(renewed))
        query = dict(parse_qsl(request.query.decode("latin-1")))
        deleted = query.get("deleted") in ("1", "true")
        found = await self._instances.get(child.id, wait(query.get("wait")), caller, deleted=deleted)
        return ok(_without_address(found))

    async def _create(self, request: EnvInstanceCreateRequest) -> EnvInstance:
        creator = self._parent.creator
        if self._refresh is not None:
            creator = await self._refresh(creator)
            creator.need("user")
        opening = Opening(self._parent, request)
        made = await self._instances.create(opening.request, creator, opening=opening)
        self._record("create", made.id)
        return _without_address(made)

    def _record(self, action: str, name: str) -> None:
        """Write a change to the audit log."""
        if self._audit is not None:
            user, token = self._parent.account, self._parent.token_id
            self._audit.write(action, user=user, token=token, status=200, instance=name, parent=self._parent.id)

    def _child(self, name: str) -> InstanceRecord:
        """Return an instance that the parent has opened. Of all others, nothing is said."""
        record = self._instances.peek(name)
        if record is None or record.parent != self._parent.id:
            raise NotFound(f"{self._parent.id} has opened no instance '{name[:100]}'")
        return record


_ACTIONS = (("GET", ""), ("DELETE", ""), ("PUT", "ttl"))


def _without_address(instance: EnvInstance) -> EnvInstance:
    """Return an instance without the fields that tell how to reach it around the platform."""
    return instance.model_copy(update=_ADDRESS)


async def _read(stream: BodyStream) -> bytes:
    found, size = [], 0
    async for data in stream:
        size += len(data)
        if size > MAX_REQUEST:
            raise TooLarge(f"a request from inside an instance has at most {MAX_REQUEST} bytes")
        found.append(data)
    return b"".join(found)
