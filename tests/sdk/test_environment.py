"""``Environment`` against a server that was started by hand (AENV_INSTANCE_URL)."""

from __future__ import annotations

import asyncio
import inspect
import io
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aenv import Environment, EnvironmentError, SyncEnvironment, ToolError, UnrecoverableEnvironmentError, setup_logging
from aenv.errors import (
    AEnvError,
    Conflict,
    EnvironmentTimeoutError,
    FunctionFailed,
    InstanceUnreachable,
    InvalidArguments,
    NetworkError,
    NotFound,
    ToolNotFound,
    ToolServerError,
    ToolTimeoutError,
    Unauthorized,
    UsageError,
    ValidationError,
)
from aenv.sdk.circuit_breaker import CircuitBreaker
from aenv.testing import Server, running
from tests.conftest import ENVS, run


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(ENVS / "everything.py", log=tmp_path_factory.mktemp("server") / "log") as server:
        yield server


@pytest.fixture(autouse=True)
def _instance_url(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AENV_INSTANCE_URL", server.url)


def in_env(use: Any, name: str = "everything@1.0.0", **options: Any) -> Any:
    async def main() -> Any:
        async with Environment(name, **options) as env:
            return await use(env)

    return run(main())


def test_the_constructor_has_every_parameter_and_default() -> None:
    defaults = {n: p.default for n, p in inspect.signature(Environment).parameters.items()}
    assert defaults == {
        "env_name": inspect.Parameter.empty, "datasource": "", "ttl": "30m", "environment_variables": None,
        "arguments": None, "aenv_url": None, "timeout": 60.0, "startup_timeout": 500.0, "max_retries": 10,
        "api_key": None, "skip_for_healthy": False, "owner": None, "labels": None, "enable_data_plane": True,
        "mount_points": None, "network": None, "instance_id": None, "keep_alive": False, "mcp": False,
        "seed": None, "cpu": None, "memory": None, "storage": None, "gpu": None, "forkable": False,
    }  # fmt: skip


@pytest.mark.parametrize("variable", ["AENV_INSTANCE_URL", "DUMMY_INSTANCE_IP"])
def test_either_variable_names_the_server(variable: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AENV_INSTANCE_URL")
    monkeypatch.setenv(variable, server.url)

    async def use(env: Environment) -> Any:
        return (await env.call_tool("echo", {"content": "hi"})).data

    assert in_env(use) == {"result": "hi"}


def test_the_new_variable_overrides_its_older_alias(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUMMY_INSTANCE_IP", "http://127.0.0.1:9")
    assert Environment("e").dummy_instance_ip == server.url
    monkeypatch.setenv("AENV_INSTANCE_URL", "")
    assert Environment("e").dummy_instance_ip == "http://127.0.0.1:9"


@pytest.mark.parametrize("option", [{"cpu": 2}, {"memory": "1Gi"}, {"storage": "1Gi"}, {"gpu": 1}])
def test_the_resources_of_a_running_server_cannot_be_chosen(option: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"{next(iter(option))}: AENV_INSTANCE_URL .* names a server"):
        run(Environment("e", **option).initialize())


def test_the_network_of_a_running_server_cannot_be_chosen() -> None:
    with pytest.raises(UsageError, match=r"network: AENV_INSTANCE_URL .* names a server"):
        run(Environment("e", network="none").initialize())


def test_attributes_hold_the_options_and_urls(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AENV_INSTANCE_URL")
    env = Environment("e", environment_variables={"A": "1", "B": None, "C": 3}, aenv_url="http://host")  # type: ignore[dict-item]
    assert env.environment_variables == {"A": "1", "C": "3"}
    assert env.aenv_control_url == "http://host:8080"
    assert env.aenv_data_url == "http://host:8081/mcp"
    assert env.aenv_health_url == "http://host:8081/health"
    assert env.aenv_reward_url == "http://host:8081/task/reward"
    assert env.aenv_functions_base_url == "http://host:8081/functions"
    assert env.dummy_instance_ip is None
    assert (env.ttl, env.timeout, env.max_retries, env.api_key, env.proxy_headers) == ("30m", 60.0, 10, None, {})
    monkeypatch.setenv("AENV_INSTANCE_URL", "https://h:1/p")
    monkeypatch.setenv("AENV_API_KEY", "k")
    assert Environment("e").aenv_data_url == "https://h:1/p/mcp"
    assert Environment("e").api_key == "k"


def test_an_empty_name_is_rejected() -> None:
    with pytest.raises(EnvironmentError, match="env_name is empty"):
        Environment("")


def test_tools_functions_rewards_and_health() -> None:
    async def use(env: Environment) -> None:
        result = await env.call_tool("echo", {"content": "hi"})
        assert repr(result) == """ToolResult(content=[{'type': 'text', 'text': '{"result":"hi"}'}], is_error=False)"""
        assert result.data == {"result": "hi"}
        assert await env.call_function("add", {"a": 10, "b": 20}) == 30
        assert await env.call_function("greet", {"name": "you"}) == {"greeting": "hello you", "tags": []}
        assert await env.call_reward({"status": {"completed": True}}) == 1.0
        assert await env.call_reward({"status": {}}, name="completion") == 0.0
        assert (await env.check_health())["data"]["mine"] is True
        assert (await env.check_health({"depth": 2}))["data"]["depth"] == 2
        assert (await env.list_functions())["reward"][0]["name"] == "completion"

    in_env(use)


def test_results_of_every_kind_arrive() -> None:
    async def use(env: Environment) -> dict[str, Any]:
        kinds = (
            "empty",
            "none",
            "list",
            "number",
            "true",
            "dict",
            "png",
            "image",
            "mixed",
            "point",
            "unicode",
            "model",
        )
        return {kind: await env.call_tool("give", {"what": kind}) for kind in kinds}

    got = in_env(use)
    assert got["empty"].content == [{"type": "text", "text": ""}]
    assert got["none"].content == []
    assert got["none"].data is None
    assert got["list"].data == ["a", "b"]
    assert got["number"].data == 2
    assert got["number"].text == "2"
    assert got["true"].data is True
    assert got["dict"].data == {"a": [1, None]}
    assert got["png"].content[0]["mimeType"] == "image/png"
    assert set(got["image"].content[0]) == {"type", "data", "mimeType"}
    assert [b["type"] for b in got["mixed"].content] == ["text", "image"]
    assert got["point"].data == {"x": 1, "y": 2}
    assert got["unicode"].text == "héllo ☃"
    assert got["model"].data == {"query": "q", "results": []}


def test_tools_are_listed_under_qualified_names() -> None:
    async def use(env: Environment) -> list[dict[str, Any]]:
        return await env.list_tools()

    tools = in_env(use, "mini@1.0.1")
    assert all(set(t) - {"outputSchema"} == {"name", "description", "inputSchema"} for t in tools)
    assert tools[0]["name"] == "mini@1.0.1/echo"


def test_bare_and_qualified_names_both_work() -> None:
    async def use(env: Environment) -> list[str]:
        names = ("echo", "e@1.0.0/echo", "e/echo")
        return [(await env.call_tool(n, {"content": "x"})).text for n in names]

    assert in_env(use, "e@1.0.0") == ['{"result":"x"}'] * 3

    async def foreign(env: Environment) -> None:
        for name in ("other@1.0.0/echo", "e@2.0.0/echo", "other/echo"):
            with pytest.raises(ToolNotFound, match=r"not found in environment 'e@1\.0\.0'"):
                await env.call_tool(name, {})

    in_env(foreign, "e@1.0.0")


def test_errors_have_a_fault() -> None:
    async def use(env: Environment) -> None:
        bad = await env.call_tool("echo", {"content": 3})
        assert (bad.is_error, bad.fault) == (True, "policy")
        raising = await env.call_tool("fails", {})
        assert (raising.is_error, raising.fault) == (True, "env")
        assert raising.text == "Error calling tool 'fails': the author's words"
        assert (await env.call_tool("nonsense", {})).fault == "policy"
        with pytest.raises(FunctionFailed, match="no good") as failed:
            await env.call_function("fails_too", {})
        assert (failed.value.fault, failed.value.env_name) == ("env", "everything@1.0.0")
        with pytest.raises(InvalidArguments) as invalid:
            await env.call_function("add", {"a": 1, "b": "two"})
        assert invalid.value.fault == "caller"
        assert isinstance(invalid.value, EnvironmentError | ValidationError)
        with pytest.raises(NotFound, match="no function 'nothing'"):
            await env.call_function("nothing", {})
        with pytest.raises(NotFound, match="no reward 'luck'"):
            await env.call_reward({}, name="luck")
        with pytest.raises(EnvironmentError, match="not JSON"):
            await env.call_function("add", {"a": object()})

    in_env(use)


def test_errors_form_one_tree() -> None:
    error = ToolError("m", "tool", {"k": 1})
    assert (error.message, error.tool_name, error.details, str(error)) == ("m", "tool", {"k": 1}, "m")
    assert EnvironmentError("m", "env").env_name == "env"
    assert ToolTimeoutError("m", "t", 0.5).timeout == 0.5
    assert ToolServerError("m", "t", 502).status_code == 502
    assert issubclass(UnrecoverableEnvironmentError, EnvironmentError)
    assert issubclass(InstanceUnreachable, NetworkError)
    assert issubclass(Conflict, AEnvError)
    assert AEnvError("m").details == {}
    assert {ToolTimeoutError("m").fault, ToolServerError("m").fault, ToolNotFound("m").fault} == {
        "timeout", "infra", "policy",
    }  # fmt: skip


def test_timeouts_fire_and_the_environment_stays_usable() -> None:
    async def use(env: Environment) -> None:
        with pytest.raises(ToolTimeoutError) as late:
            await env.call_tool("nap", {"seconds": 5}, timeout=0.1)
        assert late.value.timeout == 0.1
        assert late.value.details == {"budget": "call", "seconds": 0.1}
        with pytest.raises(EnvironmentTimeoutError) as late_too:
            await env.call_function("nap_function", {"seconds": 5}, timeout=0.1)
        assert late_too.value.fault == "timeout"
        assert (await env.call_tool("echo", {"content": "x"})).data == {"result": "x"}

    in_env(use)


def test_a_cancelled_call_raises_and_the_tool_sees_it() -> None:
    async def use(env: Environment) -> None:
        for tool, arguments in (("nap_async", {"seconds": 30}), ("wait_for_cancel", {})):
            task = asyncio.create_task(env.call_tool(tool, arguments))
            while f"{tool} started" not in await env.call_function("get_calls"):
                pass
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while f"{tool} cancelled" not in await env.call_function("get_calls"):
                pass
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(env.call_tool("nap", {"seconds": 5}), 0.1)
        assert (await env.call_tool("echo", {"content": "x"})).data == {"result": "x"}

    in_env(use)


def test_concurrent_first_calls_initialise_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        env = Environment("e")
        await asyncio.gather(*(env.list_tools() for _ in range(10)))
        await env.release()

    with caplog.at_level(logging.INFO, "aenv"):
        run(main())
    assert caplog.text.count("Environment is running") == 1


def test_release_is_idempotent_and_final_until_initialised_again() -> None:
    async def main() -> None:
        env = Environment("e")
        await env.release()
        assert await env.initialize() is True
        assert await env.initialize() is True
        await env.destroy()
        await env.release()
        with pytest.raises(EnvironmentError, match="was released"):
            await env.call_tool("echo", {"content": "x"})
        await env.initialize()
        assert (await env.call_tool("echo", {"content": "x"})).data == {"result": "x"}
        await env.release()

    run(main())


def test_info_and_readiness_are_reported(server: Server) -> None:
    async def use(env: Environment) -> None:
        await env.wait_for_ready(timeout=10)
        info = await env.get_env_info()
        assert set(info) == {"name", "instance_id", "status", "ip", "created_at", "updated_at"}
        assert (info["instance_id"], info["status"]) == ("test", "Running")
        assert await env.presign_url(8000) == "http://127.0.0.1:8000"
        assert repr(env) == "<Environment everything@1.0.0 (instance test)>"

    in_env(use)


def test_without_a_data_plane_calls_are_refused() -> None:
    async def use(env: Environment) -> None:
        with pytest.raises(EnvironmentError, match="enable_data_plane"):
            await env.list_tools()

    in_env(use, enable_data_plane=False)


def test_an_unreachable_server_is_reported_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AENV_INSTANCE_URL", f"http://127.0.0.1:{_free_port()}")
    monkeypatch.setattr("aenv.sdk.placement.PATIENCE", 0.1)
    with pytest.raises(InstanceUnreachable, match="aenv run") as caught:
        run(Environment("e").initialize())
    assert caught.value.fault == "infra"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as s:
        return int(s.getsockname()[1])


def test_a_restarted_server_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = _free_port()
    monkeypatch.setenv("AENV_INSTANCE_URL", f"http://127.0.0.1:{port}")

    async def main() -> list[Any]:
        first = running(ENVS / "everything.py", log=tmp_path / "1", port=port)
        first.__enter__()
        env = Environment("e")
        counts = [(await env.call_tool("count", {"key": "k"})).data for _ in range(2)]
        first.__exit__(None, None, None)
        with running(ENVS / "everything.py", log=tmp_path / "2", port=port):
            counts += [(await env.call_tool("count", {"key": "k"})).data for _ in range(2)]
            await env.release()
        return counts

    assert run(main()) == [1, 2, 1, 2]


def test_a_call_waits_for_a_server_that_is_just_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = _free_port()
    monkeypatch.setenv("AENV_INSTANCE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setattr("aenv.sdk.placement.PATIENCE", 30.0)

    async def main() -> Any:
        async def late() -> Any:
            async with Environment("e") as env:
                return (await env.call_tool("echo", {"content": "x"})).data

        task = asyncio.create_task(late())
        await asyncio.sleep(0.1)
        with running(ENVS / "everything.py", log=tmp_path / "1", port=port):
            return await task

    assert run(main()) == {"result": "x"}


def test_a_call_whose_answer_is_lost_is_never_sent_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[bytes] = []

    async def main() -> None:
        async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            if b"/health" in head:
                writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n{"success":true}')
            else:
                received.append(head)
            writer.close()

        listener = await asyncio.start_server(swallow, "127.0.0.1", 0)
        monkeypatch.setenv("AENV_INSTANCE_URL", f"127.0.0.1:{listener.sockets[0].getsockname()[1]}")
        async with Environment("e") as env:
            with pytest.raises(ToolServerError, match="may have run") as lost:
                await env.call_tool("pay", {})
            assert lost.value.fault == "infra"
            with pytest.raises(InstanceUnreachable) as lost_too:
                await env.call_reward({})
            assert lost_too.value.details["sent"] is True
        listener.close()

    run(main())
    assert len(received) == 2


def test_the_breaker_opens_and_a_probe_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reachable = False

    async def main() -> None:
        async def flaky(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            if reachable or b"/health" in head:
                body = b'{"success":true,"data":{"content":[],"is_error":false}}'
                writer.write(
                    b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
                )
            writer.close()

        nonlocal reachable
        listener = await asyncio.start_server(flaky, "127.0.0.1", 0)
        monkeypatch.setenv("AENV_INSTANCE_URL", f"127.0.0.1:{listener.sockets[0].getsockname()[1]}")
        now = 100.0
        monkeypatch.setattr("aenv.sdk.instance_session.CircuitBreaker", lambda: CircuitBreaker(clock=lambda: now))
        async with Environment("e") as env:
            for _ in range(5):
                with pytest.raises(ToolServerError):
                    await env.call_tool("t", {})
            with pytest.raises(UnrecoverableEnvironmentError):
                await env.call_tool("t", {})
            reachable = True
            with pytest.raises(UnrecoverableEnvironmentError):
                await env.call_function("f", {})
            now += 2.0
            assert not (await env.call_tool("t", {})).is_error
            assert not (await env.call_tool("t", {})).is_error
        listener.close()

    run(main())


def test_a_tools_own_timeout_does_not_open_the_breaker() -> None:
    async def use(env: Environment) -> None:
        for _ in range(6):
            with pytest.raises(ToolTimeoutError):
                await env.call_tool("nap_async", {"seconds": 5}, timeout=0.02)
        assert not (await env.call_tool("echo", {"content": "x"})).is_error

    in_env(use)


def test_an_instance_with_a_token_requires_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(ENVS / "everything.py", log=tmp_path / "log", variables={"AENV_TOKEN": "t"}) as own:
        monkeypatch.setenv("AENV_INSTANCE_URL", own.url)

        async def use(env: Environment) -> Any:
            return (await env.call_tool("echo", {"content": "x"})).data

        assert in_env(use, api_key="t") == {"result": "x"}
        with pytest.raises(Unauthorized) as refused:
            in_env(use, api_key="wrong")
        assert isinstance(refused.value, EnvironmentError)


def test_an_unhealthy_environment_is_reported_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sick.py").write_text(
        "from aenv import register_health, register_tool\n"
        "@register_tool\ndef t(): return 1\n"
        "@register_health\ndef h(): return {'status': 'warming up'}\n"
    )
    with running(tmp_path / "sick.py", log=tmp_path / "log") as own:
        monkeypatch.setenv("AENV_INSTANCE_URL", own.url)
        with pytest.raises(EnvironmentTimeoutError, match="warming up") as late:
            run(Environment("e", startup_timeout=0.2).initialize())
        assert late.value.details["budget"] == "startup"

        async def skipping() -> Any:
            async with Environment("e", skip_for_healthy=True) as env:
                return (await env.call_tool("t")).data

        assert run(skipping()) == 1


def test_one_environment_works_in_several_event_loops() -> None:
    env = Environment("e")
    for _ in range(3):
        assert asyncio.run(env.call_tool("echo", {"content": "x"})).data == {"result": "x"}
    asyncio.run(env.release())


def test_the_blocking_environment_works() -> None:
    with Environment("everything@1.0.0").sync() as env:
        assert env.call_tool("echo", {"content": "x"}).data == {"result": "x"}
        assert env.call_function("add", {"a": 1, "b": 2}) == 3
        assert env.call_reward({"status": {"completed": True}}) == 1.0
        assert env.check_health()["success"]
        assert env.list_tools()[0]["name"] == "everything@1.0.0/echo"
        assert env.get_env_info()["status"] == "Running"
        assert env.list_functions()["total"] > 0
        with pytest.raises(ToolTimeoutError):
            env.call_tool("nap_async", {"seconds": 5}, timeout=0.05)

    async def inside_a_running_loop() -> Any:
        with SyncEnvironment("e") as env:
            return env.call_tool("echo", {"content": "y"}).data

    assert asyncio.run(inside_a_running_loop()) == {"result": "y"}


def test_the_blocking_environment_has_all_methods() -> None:
    def methods(cls: type) -> set[str]:
        return {name for name in dir(cls) if callable(getattr(cls, name)) and not name.startswith("_")}

    assert methods(Environment) - {"sync", "list_openai_tools"} <= methods(SyncEnvironment)
    for name in methods(Environment) & methods(SyncEnvironment) - {"destroy", "call_function", "exec"}:
        blocking = str(inspect.signature(getattr(SyncEnvironment, name)))
        plain = blocking.replace("'Sync", "'").replace("[Sync", "[")
        assert str(inspect.signature(getattr(Environment, name))) == plain
    of_calls = [inspect.signature(cls.call_function).parameters for cls in (Environment, SyncEnvironment)]
    assert of_calls[0] == of_calls[1]


def test_log_lines_keep_their_format_and_contain_no_arguments() -> None:
    out = io.StringIO()
    setup_logging(logging.StreamHandler(out), logging.INFO)
    try:

        async def use(env: Environment) -> None:
            await env.call_tool("echo", {"content": "s3cret"})
            await env.call_function("get_calls", {})

        in_env(use, environment_variables={"KEY": "s3cret"})
    finally:
        setup_logging()
    assert " aenv.environment INFO: [ENV:test] Executing tool: echo in environment everything@1.0.0\n" in out.getvalue()
    assert "s3cret" not in out.getvalue()


def test_openai_tools_have_names_that_the_api_accepts() -> None:
    import json
    import re

    async def use(env: Environment) -> dict[str, Any]:
        tools = {t.name: t for t in await env.list_openai_tools()}
        assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in tools)
        assert not tools["kinds"].strict_json_schema
        return {
            "echo": await tools["echo"].on_invoke_tool(None, json.dumps({"content": "x"})),
            "error": await tools["fails"].on_invoke_tool(None, ""),
            "image": await tools["give"].on_invoke_tool(None, '{"what": "mixed"}'),
        }

    got = in_env(use)
    assert got["echo"] == '{"result":"x"}'
    assert "the author's words" in got["error"]
    assert got["image"][1].image_url.startswith("data:image/png;base64,")
