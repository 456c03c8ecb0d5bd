"""Replica of a service: its state on this server, and its health check."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from pydantic_core import from_json

from aenv.errors import AEnvError
from aenv.http.client import HttpClient
from aenv.http.url import ServerUrl
from aenv.platform.instances.instance_record import STARTING, InstanceRecord
from aenv.schema import paths
from aenv.schema.instances import EnvInstance, EnvInstanceCreateRequest
from aenv.sdk.health import HEALTHY

HEALTH_TIMEOUT = 5.0
HEALTH_BYTES = 64 * 1024
MAX_HEALTH_MESSAGE = 1000
"""Characters to keep of a health check's message."""


@dataclass(eq=False, slots=True)
class ReplicaHandle:
    """A replica of a service."""

    revision: int
    read_only: bool = False
    """True if it may only read its storage."""
    request: EnvInstanceCreateRequest | None = None
    creating: asyncio.Task[EnvInstance] | None = None
    id: str = ""
    since: float = 0.0
    healthy: bool = False
    last_healthy: float = 0.0
    checked: float = 0.0
    checking: asyncio.Task[None] | None = None
    draining: asyncio.Task[None] | None = None
    requests: int = 0
    """Requests under way."""
    last_used: int = 0
    """Sequence number of the last request that it was given."""
    health_problem: str = ""
    """Message of its last health check, if that failed."""

    @property
    def ready(self) -> bool:
        """True if it may be given requests."""
        return self.healthy and self.draining is None


async def find_health_problem(record: InstanceRecord) -> str:
    """Return the problem that an instance's health check reports; empty: it is healthy."""
    if record.ref is None or record.status in STARTING:
        return "it is being created"
    http = HttpClient(ServerUrl.parse(record.ref.data_url), token=record.ref.token)
    try:
        answer = await http.request("GET", paths.HEALTH, timeout=HEALTH_TIMEOUT, limit=HEALTH_BYTES)
        body = from_json(answer.body)
    except AEnvError as error:
        return error.message
    except ValueError:
        return "its health check does not return JSON"
    finally:
        http.close()
    data = body.get("data") if isinstance(body, dict) else None
    status = data.get("status", HEALTHY[0]) if isinstance(data, dict) else HEALTHY[0]
    if answer.status == 200 and status in HEALTHY:
        return ""
    message = data.get("message") or status if isinstance(data, dict) else answer.status
    return f"its health check says '{str(message)[:MAX_HEALTH_MESSAGE]}'"
