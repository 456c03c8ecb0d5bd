"""Waits and releases of a batch: few requests for all, and each caller learns of its own instance."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aenv.errors import AEnvError, EnvironmentTimeoutError, InstanceUnreachable, NotFound, Unavailable
from aenv.schema.instances import EnvInstance, EnvStatus
from aenv.sdk.instance_group import InstanceGroup


class Api:
    """A platform that notes what is asked of it."""

    def __init__(self, failed: dict[str, str] | None = None, error: AEnvError | None = None) -> None:
        self.requests: list[list[str]] = []
        self._failed = failed or {}
        self._error = error

    async def delete_env_instance(self, name: str) -> bool:
        await self.delete_env_instances([name])
        return True

    async def delete_env_instances(self, names: list[str]) -> dict[str, str]:
        self.requests.append(names)
        await asyncio.sleep(0)
        if self._error is not None:
            raise self._error
        return self._failed


class StartingApi:
    """A platform on which instances become ready one response after another."""

    def __init__(self, *responses: tuple[list[EnvInstance], list[str]] | AEnvError) -> None:
        self.requests: list[list[str]] = []
        self._responses = list(responses)

    async def wait_for_any(self, names: list[str]) -> tuple[list[EnvInstance], list[str]]:
        self.requests.append(names)
        await asyncio.sleep(0)
        if not self._responses:
            await asyncio.Event().wait()
        response = self._responses.pop(0)
        if isinstance(response, AEnvError):
            raise response
        return response


def running(name: str) -> EnvInstance:
    return EnvInstance(id=name, status=EnvStatus.RUNNING)


async def wait(api: Any, *names: str, timeout: float = 30.0) -> list[Any]:
    group = InstanceGroup()
    return await asyncio.gather(*(group.wait(api, name, timeout) for name in names), return_exceptions=True)


def test_waits_share_requests_and_each_gets_its_own_instance() -> None:
    api = StartingApi(([running("b")], []), ([], []), ([running("c"), running("a")], []))
    assert [one.id for one in asyncio.run(wait(api, "a", "b", "c"))] == ["a", "b", "c"]
    assert [set(names) for names in api.requests] == [{"a", "b", "c"}, {"a", "c"}, {"a", "c"}]


def test_an_instance_that_fails_to_start_does_not_fail_the_others() -> None:
    failed = EnvInstance(id="b", status=EnvStatus.FAILED, reason="out of memory", error_code="capacity")
    first, second, third = asyncio.run(wait(StartingApi(([failed], ["c"]), ([running("a")], [])), "a", "b", "c"))
    assert first.id == "a"
    assert (second.code, "out of memory" in second.message) == ("capacity", True)
    assert isinstance(third, NotFound)


def test_all_waits_end_when_the_platform_is_gone_or_time_is_up() -> None:
    lost = asyncio.run(wait(StartingApi(InstanceUnreachable("gone")), "a", "b"))
    assert all(isinstance(outcome, InstanceUnreachable) for outcome in lost)
    late = asyncio.run(wait(StartingApi(), "a", "b", timeout=0.01))
    assert all(isinstance(outcome, EnvironmentTimeoutError) for outcome in late)


async def release(api: Any, *names: str) -> list[object]:
    group = InstanceGroup()
    return await asyncio.gather(*(group.delete(api, name) for name in names), return_exceptions=True)


def test_releases_of_one_moment_are_one_request() -> None:
    api = Api()
    assert asyncio.run(release(api, "a", "b", "c", "b")) == [None] * 4
    assert api.requests == [["a", "b", "c"]]


def test_a_later_release_is_a_request_of_its_own() -> None:
    api = Api()

    async def main() -> None:
        group = InstanceGroup()
        await group.delete(api, "a")  # type: ignore[arg-type]
        await group.delete(api, "b")  # type: ignore[arg-type]

    asyncio.run(main())
    assert api.requests == [["a"], ["b"]]


def test_one_that_fails_does_not_fail_the_others() -> None:
    first, second = asyncio.run(release(Api(failed={"b": "its zygote hangs"}), "a", "b"))
    assert first is None
    assert isinstance(second, Unavailable)
    assert "hangs" in second.message


def test_all_learn_that_the_platform_is_gone() -> None:
    outcomes = asyncio.run(release(Api(error=InstanceUnreachable("gone")), "a", "b"))
    assert all(isinstance(outcome, InstanceUnreachable) for outcome in outcomes)


def test_a_cancelled_release_leaves_the_others_alone() -> None:
    async def main() -> None:
        group, api = InstanceGroup(), Api()
        tasks = [asyncio.create_task(group.delete(api, name)) for name in ("a", "b")]  # type: ignore[arg-type]
        await asyncio.sleep(0)
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        await tasks[1]
        assert api.requests == [["a", "b"]]

    asyncio.run(main())
