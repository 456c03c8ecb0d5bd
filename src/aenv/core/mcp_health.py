"""Earlier import path of the health helpers; the runtime itself serves ``/health``."""

from __future__ import annotations

import time
from typing import Any

from aenv.client.instance_client import InstanceClient
from aenv.errors import AEnvError
from aenv.http.url import ServerUrl
from aenv.schema import paths

_last_active = time.time()


def update_active_time() -> None:
    """Record the time of the last call."""
    global _last_active
    _last_active = time.time()


async def check_mcp_health(mcp_url: str = "http://localhost:8081/mcp") -> dict[str, Any]:
    """Return the health status of the server at ``mcp_url``; an unreachable one has the status ``error``."""
    client = InstanceClient(ServerUrl.parse(mcp_url.removesuffix(paths.MCP), default_port=paths.DATA_PORT))
    try:
        body = await client.exchange("GET", paths.HEALTH, timeout=5.0, patience=0)
    except AEnvError as error:
        return {"status": "error", "message": error.message}
    finally:
        client.close()
    return dict(body.get("data") or {"status": "success"})


async def default_health_handler() -> dict[str, Any]:
    """Return the health status of the server on the default port, and the time of the last call."""
    return {**await check_mcp_health(), "last_active": _last_active}


async def close_health_clients() -> None:
    """Do nothing: no connection is kept open. Kept for existing code."""
