"""Warm pools: `aenv pool`, its routes and the SDK, on `aenv serve`."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest

from aenv.client.platform_client import ApiClient
from aenv.errors import AEnvError, InvalidUse, NotFound, QuotaExceeded
from tests.conftest import run
from tests.platform.conftest import publish
from tests.platform.parts import Served, environ


async def _pools(platform: Served, token: str) -> list[dict[str, Any]]:
    async with ApiClient(platform.url, api_key=token) as api:
        return [each.model_dump() for each in await api.list_env_pools()]


async def _full(platform: Served, token: str, size: int) -> None:
    """Return once the pool has its size."""
    async with asyncio.timeout(60):
        while [each["ready"] for each in await _pools(platform, token)] != [size]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def test_a_pool_is_kept_full_and_serves_creates(platform: Served) -> None:
    token, other = platform.token("pia"), platform.token("otto")

    async def main() -> None:
        env = platform.environment("counter", token)
        made = await env.create_pool(2)
        assert (made.name, made.size, made.owner) == ("counter@1.2.0", 2, "pia")
        await _full(platform, token, 2)
        async with env:
            assert (await env.call_tool("increment")).data == 1
            async with ApiClient(platform.url, api_key=token) as api:
                events = await api.get_instance_events((await env.get_env_info())["instance_id"])
            assert events
            await _full(platform, token, 2)
        assert await _pools(platform, other) == []
        with pytest.raises(NotFound):
            await platform.environment("counter", other).delete_pool()
        await env.delete_pool()
        assert await _pools(platform, token) == []

    run(main())


def test_a_pool_beyond_the_allowance_or_of_nothing_is_refused(platform: Served) -> None:
    token = platform.token("small", "user", "--instances", "1")

    async def main() -> None:
        with pytest.raises(QuotaExceeded):
            await platform.environment("counter", token).create_pool(2)
        with pytest.raises(NotFound):
            await platform.environment("nothing-here", token).create_pool(1)
        with pytest.raises(NotFound):
            await platform.environment("counter", token).delete_pool()
        assert await _pools(platform, token) == []

    run(main())


@pytest.mark.attack("pools")
def test_pools_of_several_environments_share_one_allowance(platform: Served) -> None:
    asyncio.run(publish(platform.data, "second"))
    token = platform.token("sharing", "user", "--instances", "2")

    async def main() -> None:
        first, second = platform.environment("counter", token), platform.environment("second", token)
        await first.create_pool(2)
        with pytest.raises(QuotaExceeded, match="uses 2 of 2 instances"):
            await second.create_pool(1)
        await first.create_pool(1)
        await second.create_pool(1)
        assert [each["size"] for each in await _pools(platform, token)] == [1, 1]
        await first.delete_pool()
        await second.delete_pool()

    run(main())


@pytest.mark.attack("pools")
def test_a_pool_and_instances_share_one_allowance(platform: Served) -> None:
    """A pool makes room for the instances of its owner, and fills again when they end."""
    token = platform.token("full", "user", "--instances", "2")

    async def main() -> None:
        await platform.environment("counter", token).create_pool(2)
        await _full(platform, token, 2)
        async with platform.environment("counter", token):
            await _full(platform, token, 1)
            async with platform.environment("counter", token):
                with pytest.raises(QuotaExceeded):
                    await platform.environment("counter", token, max_retries=0).initialize()
        await _full(platform, token, 2)
        await platform.environment("counter", token).delete_pool()

    run(main())


def test_the_command_creates_lists_and_deletes_pools(platform: Served) -> None:
    token = platform.token("cli")

    def aenv(*arguments: str, code: int = 0) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "aenv.cli", "pool", *arguments, "--output", "json"],
            env={**environ(platform.data), "AENV_SYSTEM_URL": platform.url, "AENV_API_KEY": token},
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if done.stdout else done.stderr

    assert aenv("create", "counter", "--size", "1")["name"] == "counter@1.2.0"
    [found] = aenv("list")
    assert (found["size"], found["owner"]) == (1, "cli")
    assert aenv("delete", "counter")["deleted"] is True
    assert aenv("list") == []
    assert "no pool of counter" in aenv("delete", "counter", code=1)


def test_an_environment_creates_and_deletes_its_pool_without_async(platform: Served) -> None:
    env = platform.environment("counter", platform.token("cat")).sync()
    made = env.create_pool(1)
    assert (made.name, made.size, made.owner) == ("counter@1.2.0", 1, "cat")
    with pytest.raises(InvalidUse, match="size must be at least 1"):
        env.create_pool(0)
    env.delete_pool()
    with pytest.raises(NotFound):
        env.delete_pool()


def test_an_engine_without_pools_refuses_them_by_name(data: Any) -> None:
    from tests.platform.parts import serving

    with serving(data, "--engine", "process", auth=False) as platform:

        async def main() -> None:
            with pytest.raises(AEnvError, match="keeps no instances ready"):
                await platform.environment("counter").create_pool(1)

        run(main())
