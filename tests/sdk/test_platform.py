"""``Environment`` and the control plane's client against a platform."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import pytest

from aenv import Environment, EnvironmentError, register_reward, register_tool
from aenv.authoring.declarations import Registry
from aenv.client.scheduler_client import AEnvSchedulerClient
from aenv.errors import ConfigError, EnvironmentTimeoutError, InstanceUnreachable, NotFound
from aenv.http.messages import Request, Response
from aenv.http.server import HttpServer
from tests.conftest import run
from tests.sdk.platform import Platform, platform, unavailable


@pytest.fixture(autouse=True)
def _declared(registry: Registry) -> None:
    register_tool(name="t")(lambda: "answer")
    register_reward(name="r")(lambda: 0.5)


def on_platform(registry: Registry, use: Any) -> Any:
    async def main() -> Any:
        async with platform(registry) as made:
            result = await use(made)
            assert made.instances == {}, "an instance was left behind"
            return result

    return run(main())


def test_an_instance_is_created_used_and_deleted(registry: Registry) -> None:
    async def use(made: Platform) -> None:
        made.polls_until_running = 3
        async with Environment(
            "my-env@1.2.0", "data", "2h", {"A": "1"}, ["--x"], made.url, owner="me", labels={"experiment": "e1"},
            api_key="key", mount_points=[{"id": "m"}],
        ) as env:  # fmt: skip
            assert (await env.call_tool("t")).text == "answer"
            assert await env.call_reward() == 0.5
            info = await env.get_env_info()
            assert (info["instance_id"], info["status"]) == ("my-env-1", "Running")
            assert await env.presign_url(8000) == f"{made.url}/my-env-1/8000"
        [body] = made.created
        body.pop("request_id")
        assert 0 < body.pop("queue_timeout") < 60  # the platform answers before the client's timeout
        assert body == {
            "envName": "my-env@1.2.0", "datasource": "data", "ttl": "2h", "arguments": ["--x"], "owner": "me",
            "environment_variables": {"A": "1", "envNAME": "my-env", "envversion": "1.2.0"},
            "labels": {"experiment": "e1"}, "mount_points": [{"id": "m"}], "mcp": False,
        }  # fmt: skip
        assert all(h[b"authorization"] == b"Bearer key" for h in made.headers)
        assert made.requests[-1] == "DELETE /env-instance/my-env-1"

    on_platform(registry, use)


def test_a_ttl_that_was_not_given_is_not_sent(registry: Registry) -> None:
    async def use(made: Platform) -> list[str]:
        for options in ({}, {"ttl": "30m"}):
            async with Environment("e", aenv_url=made.url, **options):
                pass
        return [body["ttl"] for body in made.created]

    assert on_platform(registry, use) == ["", "30m"]


def test_an_instance_whose_network_was_ignored_is_deleted(registry: Registry) -> None:
    async def use(made: Platform) -> None:
        with pytest.raises(EnvironmentError, match="does not support network="):
            await Environment("e", aenv_url=made.url, network=["index.example.com"]).initialize()
        assert made.created[0]["network"] == ["index.example.com"]

    on_platform(registry, use)


def test_a_failed_instance_is_reported_at_once_and_removed(registry: Registry) -> None:
    async def use(made: Platform) -> None:
        made.fate = ("Failed", "ImagePullBackOff: no such image")  # type: ignore[assignment]
        with pytest.raises(EnvironmentError, match="ImagePullBackOff") as caught:
            await Environment("e", aenv_url=made.url).initialize()
        assert caught.value.env_name == "e"
        assert caught.value.fault == "infra"

    on_platform(registry, use)


def test_an_instance_that_never_runs_times_out_and_is_removed(registry: Registry) -> None:
    async def use(made: Platform) -> None:
        made.polls_until_running = 10**9
        with pytest.raises(EnvironmentTimeoutError, match="still Creating"):
            await Environment("e", aenv_url=made.url, startup_timeout=0.1).initialize()

    on_platform(registry, use)


def test_a_retried_create_makes_one_instance(registry: Registry) -> None:
    async def use(made: Platform) -> int:
        real = made.__call__

        def lose(request: Request) -> Response | None:
            asyncio.get_running_loop().create_task(real(request))
            return unavailable(request)

        made.faults = [lose]
        async with Environment("e", aenv_url=made.url) as env:
            assert (await env.call_tool("t")).text == "answer"
        return len(made.created)

    assert on_platform(registry, use) == 1


def test_a_create_is_retried_while_the_platform_is_busy(registry: Registry) -> None:
    async def use(made: Platform) -> None:
        made.faults = [unavailable, unavailable]
        async with Environment("e", aenv_url=made.url) as env:
            assert (await env.call_tool("t")).text == "answer"

    on_platform(registry, use)


def test_cancelling_during_start_deletes_the_instance(registry: Registry) -> None:
    async def use(made: Platform) -> None:
        made.polls_until_running = 10**9
        task = asyncio.create_task(Environment("e", aenv_url=made.url).initialize())
        while not made.instances:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    on_platform(registry, use)


def test_an_exception_in_the_block_deletes_the_instance(registry: Registry) -> None:
    async def use(made: Platform) -> None:
        with pytest.raises(KeyError):
            async with Environment("e", aenv_url=made.url):
                raise KeyError

    on_platform(registry, use)


def test_a_delete_that_fails_is_logged_and_not_raised(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    async def use(made: Platform) -> None:
        env = Environment("e", aenv_url=made.url)
        await env.initialize()
        made.faults = [lambda request: Response(500, b'{"success":false,"message":"broken"}')]
        with caplog.at_level(logging.WARNING, "aenv"):
            await env.release()
        made.instances.clear()

    on_platform(registry, use)
    assert "could not be deleted (broken)" in caplog.text


def test_an_unreachable_platform_is_reported_with_what_to_do() -> None:
    with pytest.raises(InstanceUnreachable, match="aenv run") as caught:
        run(Environment("e", aenv_url="http://127.0.0.1:9", max_retries=0).initialize())
    assert "AENV_INSTANCE_URL" in caught.value.message


def test_a_server_that_is_no_platform_is_named() -> None:
    async def handle(request: Request) -> Response:
        return Response(404, b"<html>not here")

    async def main() -> None:
        server = HttpServer(handle, max_body=1 << 20)
        listener = await server.listen(host="127.0.0.1")
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        with pytest.raises(NotFound, match=f"{url} answered HTTP 404 without JSON") as caught:
            await Environment("e", aenv_url=url).initialize()
        assert "AENV_SYSTEM_URL" in caught.value.details["hint"]
        await server.close(1.0)

    run(main())


def test_an_address_without_a_host_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting does not help: `max_retries` is not used up."""
    lookups: list[object] = []

    def unknown(host: object, *_: object, **__: object) -> None:
        lookups.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ConfigError, match=r"there is no host 'nonsense'.*aenv_url") as caught:
        run(Environment("e", aenv_url="nonsense").initialize())
    assert (caught.value.fault, lookups) == ("caller", ["nonsense"])


def test_the_client_works_under_its_old_name(registry: Registry) -> None:
    async def use(made: Platform) -> None:
        async with AEnvSchedulerClient(made.url, timeout=5, max_retries=0) as client:
            await client.connect()
            assert await client.list_env_instances() == []
            made_one = await client.create_env_instance("e@1")
            ready = await client.wait_for_status(made_one.id, "Running")
            assert (ready.id, ready.ip) == ("e-1", "127.0.0.1")
            assert [i.id for i in await client.list_env_instances("e@1", status="Running")] == ["e-1"]
            assert await client.delete_env_instance("e-1") is True
            assert await client.delete_env_instance("e-1") is False
            with pytest.raises(NotFound, match="no instance e-1"):
                await client.get_env_instance("e-1")

    on_platform(registry, use)
