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
from aenv.tracing.waits import waiting_for

HEALTHY = ("success", "healthy")
HEALTH_SECONDS = 10.0
"""Timeout of a single health check."""
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
"""Seconds between two health checks: exponential backoff."""
EARLIER_PROBE_FAILED = "Client failed to connect"
"""A server of the earlier package probes port 8081 for its own health, also when it listens on another one."""

Explain = Callable[[InstanceUnreachable], Awaitable[AEnvError | None]]
"""Return the error to raise for an unreachable instance; None to keep polling."""


async def wait_until_healthy(client: InstanceClient, env_name: str, timeout: float, explain: Explain) -> None:
    """Poll the health check until it reports a healthy instance.

    Raises:
        EnvironmentTimeoutError: the instance is not healthy within ``timeout`` seconds; with the last reason.
        AEnvError: the error of ``explain``, or an answer that a retry cannot change.
    """
    with waiting_for(f"{env_name} to become healthy") as waiting:
        await _poll(client, env_name, timeout, explain, waiting)


async def _poll(client: InstanceClient, env_name: str, timeout: float, explain: Explain, waiting: waiting_for) -> None:
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
        waiting.text = f"{env_name} to become healthy{reason}"
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
    if not isinstance(data, Mapping):
        return "healthy"
    status = data.get("status")
    if status == "error" and str(data.get("message", "")).startswith(EARLIER_PROBE_FAILED):
        return "healthy"
    return str(status) if status is not None else "healthy"
