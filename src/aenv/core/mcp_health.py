"""Earlier import path of the health helpers; the runtime answers ``/health`` by itself."""

from __future__ import annotations

import time
from typing import Any

from aenv.client.instance_client import InstanceClient
from aenv.errors import AEnvError
from aenv.http.url import ServerUrl
from aenv.schema import paths

_last_active = time.time()


def update_active_time() -> None:
    """Remember that something was called just now."""
    global _last_active
    _last_active = time.time()


async def check_mcp_health(mcp_url: str = "http://localhost:8081/mcp") -> dict[str, Any]:
    """Ask the server at that URL how it is."""
    client = InstanceClient(ServerUrl.parse(mcp_url.removesuffix(paths.MCP), default_port=paths.DATA_PORT))
    try:
        body = await client.exchange("GET", paths.HEALTH, timeout=5.0, patience=0)
    except AEnvError as error:
        return {"status": "error", "message": error.message}
    finally:
        client.close()
    return dict(body.get("data") or {"status": "success"})


async def default_health_handler() -> dict[str, Any]:
    """The health of the server on the default port, and when something was last called."""
    return {**await check_mcp_health(), "last_active": _last_active}


async def close_health_clients() -> None:
    """Nothing is kept open; existing code calls this."""
