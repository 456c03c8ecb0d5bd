"""Wait until an instance is healthy, and probe one that was unreachable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aenv.client.instance_client import InstanceClient
from aenv.errors import AEnvError, EnvironmentTimeoutError, InstanceUnreachable, NetworkError
from aenv.http.client import DeadlineExceeded
from aenv.schema import paths
from aenv.sdk.circuit_breaker import CircuitBreaker

HEALTHY = ("success", "healthy")
HEALTH_SECONDS = 10.0
"""Timeout of a single health check."""
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
"""Seconds between two health checks: exponential backoff."""

Explain = Callable[[InstanceUnreachable], Awaitable[AEnvError | None]]
"""Return the error to raise for an unreachable instance; None to keep polling."""


async def wait_until_healthy(client: InstanceClient, env_name: str, timeout: float, explain: Explain) -> None:
    """Poll the health check until it reports a healthy instance.

    Raises:
        EnvironmentTimeoutError: the instance is not healthy within ``timeout`` seconds; with the last reason.
        AEnvError: the error of ``explain``, or an answer that a retry cannot change.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    pause, reason = FIRST_PAUSE, ""
    while True:
        left = deadline - loop.time()
        if left <= 0:
            raise timed_out(env_name, "startup", timeout, f"the environment is not healthy{reason}")
        try:
            body = await client.exchange("GET", paths.HEALTH, timeout=min(left, HEALTH_SECONDS))
            status = _status_of(body)
            if status in HEALTHY:
                return
            reason = f": its health check says '{status}'"
        except InstanceUnreachable as error:
            final = await explain(error)
            if final is not None:
                raise final from error
            reason = f": {error.message}"
        except DeadlineExceeded:
            reason = ": its health check does not answer"
        except AEnvError as error:
            if not (error.retryable or error.fault == "env"):
                raise
            reason = f": {error.message}"
        await asyncio.sleep(min(pause, max(left, 0)))
        pause = min(pause * 2, LONGEST_PAUSE)


async def probe(client: InstanceClient, breaker: CircuitBreaker) -> None:
    """Send one health check if a probe is due, and record in ``breaker`` whether the instance answered."""
    if not breaker.may_probe():
        return
    try:
        await client.exchange("GET", paths.HEALTH, timeout=HEALTH_SECONDS, patience=0)
    except NetworkError:
        breaker.failed()
    except AEnvError:
        breaker.succeeded()  # perhaps unhealthy, but reachable
    else:
        breaker.succeeded()


def timed_out(env_name: str, budget: str, seconds: float, what: str) -> EnvironmentTimeoutError:
    """Return the error for an exceeded time budget."""
    return EnvironmentTimeoutError(f"{what} within {seconds:g} s", env_name, {"budget": budget, "seconds": seconds})


def _status_of(body: Mapping[str, Any]) -> str:
    data = body.get("data")
    status = data.get("status") if isinstance(data, Mapping) else None
    return str(status) if status is not None else "healthy"
