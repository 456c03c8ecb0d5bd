"""Progress of a tool reaches the caller of the SDK."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aenv import Environment, SyncEnvironment
from aenv.errors import ToolTimeoutError
from tests.sdk.conftest import in_env

Report = tuple[float, float | None, str | None]

pytestmark = pytest.mark.usefixtures("everything")


def test_each_report_reaches_a_function_before_the_result() -> None:
    seen: list[Report] = []

    async def use(env: Environment) -> Any:
        result = await env.call_tool("progresses", {"steps": 3}, on_progress=lambda *report: seen.append(report))
        return result.data

    assert in_env(use) == 3
    assert seen == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]


def test_a_coroutine_function_is_awaited() -> None:
    seen: list[Report] = []

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        await asyncio.sleep(0)
        seen.append((done, total, message))

    async def use(env: Environment) -> None:
        await env.call_tool("progresses", {"steps": 2}, on_progress=on_progress)

    in_env(use)
    assert [done for done, _, _ in seen] == [1, 2]


def test_errors_are_the_same_with_and_without_progress() -> None:
    async def use(env: Environment) -> list[Any]:
        results = []
        for name, arguments in (("fails", {}), ("echo", {}), ("nonsense", {}), ("echo", {"content": "x"})):
            plain = await env.call_tool(name, arguments)
            reported = await env.call_tool(name, arguments, on_progress=print)
            assert (plain, plain.fault, plain.data) == (reported, reported.fault, reported.data)
            results.append(plain.is_error)
        return results

    assert in_env(use) == [True, True, True, False]


def test_a_timeout_and_a_failing_callback_end_the_call() -> None:
    async def slow(env: Environment) -> None:
        await env.call_tool("nap_async", {"seconds": 30}, timeout=0.1, on_progress=print)

    with pytest.raises(ToolTimeoutError):
        in_env(slow)

    def refuse(*report: Any) -> None:
        raise KeyError("of the callback")

    async def refused(env: Environment) -> None:
        await env.call_tool("progresses", {"steps": 2}, on_progress=refuse)

    with pytest.raises(KeyError, match="of the callback"):
        in_env(refused)


def test_a_call_that_its_caller_gives_up_is_cancelled_in_the_instance() -> None:
    async def count(env: Environment, what: str) -> int:
        calls: list[str] = await env.call_function("get_calls", {})
        return calls.count(what)

    async def use(env: Environment) -> None:
        started, cancelled = await count(env, "nap_async started"), await count(env, "nap_async cancelled")
        calling = asyncio.create_task(env.call_tool("nap_async", {"seconds": 60}, on_progress=print))
        while await count(env, "nap_async started") == started:
            pass
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        while await count(env, "nap_async cancelled") == cancelled:
            pass

    in_env(use)


def test_the_blocking_environment_reports_progress_too() -> None:
    seen: list[Report] = []
    with SyncEnvironment("everything@1.0.0") as env:
        env.call_tool("progresses", {"steps": 2}, on_progress=lambda *report: seen.append(report))
    assert [done for done, _, _ in seen] == [1, 2]
