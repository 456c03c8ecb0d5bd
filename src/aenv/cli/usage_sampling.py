"""Resource usage of instances, now and since the last sample."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from aenv.errors import AEnvError
from aenv.schema import paths

if TYPE_CHECKING:
    from aenv.client.platform_client import ApiClient
    from aenv.schema.instances import EnvInstance

PAGE = 1000
ASK_SECONDS = 1.0
ASKED_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Row:
    """Sample of one instance; None where unknown."""

    id: str
    environment: str
    status: str
    owner: str
    experiment: str
    age: float
    """Seconds."""
    cpu: float | None
    """Cores used since the last sample, or since the start."""
    memory: int | None
    processes: int | None
    calls: int | None
    calls_per_second: float | None
    account: str = ""
    """User of the token that made it, where an administrator asks."""

    def facts(self) -> dict[str, Any]:
        """Return the sample as JSON."""
        return {name: getattr(self, name) for name in Row.__slots__}


class Sampler:
    """Samples all instances of a platform repeatedly."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._before: dict[str, tuple[float, int | None, int | None]] = {}

    async def sample(self, env: str | None = None, owner: str | None = None) -> list[Row]:
        """Sample all instances, oldest first."""
        found: list[EnvInstance] = []
        after: str | None = None
        while True:
            page = await self._api.page_env_instances(env, owner=owner, limit=PAGE, after=after)
            found += page.items
            after = page.next
            if after is None:
                break
        gate = asyncio.Semaphore(ASKED_AT_ONCE)
        calls = await asyncio.gather(*(_calls(each, gate) for each in found))
        now = time.monotonic()
        rows = [self._row(each, number, now) for each, number in zip(found, calls, strict=True)]
        self._before = {
            each.id: (now, (each.usage or {}).get("cpu_nanoseconds"), number)
            for each, number in zip(found, calls, strict=True)
        }
        return rows

    def _row(self, found: EnvInstance, calls: int | None, now: float) -> Row:
        used = found.usage or {}
        age = _age(found.started_at or found.created_at)
        since, cpu_before, calls_before = self._before.get(found.id, (now - age, 0, 0))
        seconds = max(now - since, 0.001)
        cpu = used.get("cpu_nanoseconds")
        return Row(
            found.id,
            f"{found.env.name}@{found.env.version}" if found.env and found.env.version else _name(found),
            str(found.status),
            found.owner or "",
            (found.labels or {}).get("experiment", ""),
            age,
            None if cpu is None or cpu_before is None else max(0.0, (cpu - cpu_before) / 1e9 / seconds),
            used.get("memory_bytes"),
            used.get("processes"),
            calls,
            None if calls is None or calls_before is None else max(0.0, (calls - calls_before) / seconds),
            found.account or "",
        )


def _name(found: EnvInstance) -> str:
    return found.env.name if found.env else ""


def _age(written: str) -> float:
    try:
        return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(written)).total_seconds())
    except ValueError:
        return 0.0


async def _calls(found: EnvInstance, gate: asyncio.Semaphore) -> int | None:
    """Return the number of calls: counted by the gateway, or by the instance where calls bypass the gateway."""
    if found.usage is not None and "calls" in found.usage:
        return found.usage["calls"]
    if found.data_url is None or found.token is None:
        return None
    from aenv.client.instance_client import InstanceClient
    from aenv.http.url import ServerUrl

    async with gate:
        client = InstanceClient(ServerUrl.parse(found.data_url), token=found.token, patience=0)
        try:
            return int((await client.exchange("GET", paths.STATS, timeout=ASK_SECONDS))["data"]["calls"])
        except AEnvError:  # it may have ended meanwhile
            return None
        finally:
            client.close()
