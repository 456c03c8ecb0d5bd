"""The part of a platform client that the clients of rollouts and trajectories need."""

from __future__ import annotations

from typing import Any, Protocol

from pydantic import BaseModel


class PlatformRequests(Protocol):
    """Sends requests to a platform; `ApiClient` is one."""

    base_url: str
    api_key: str | None

    async def data(self, method: str, path: str, body: BaseModel | None = None) -> Any:
        """Send a request and return the data of its response."""
        ...
