"""The features of the SDK that the guide describes, end to end against a real server."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aenv
from aenv import AEnvError, Environment, EnvironmentError, setup_logging
from aenv.authoring.declarations import Registry
from aenv.project import manifest
from aenv.testing import running
from tests.conftest import fetch, run
from tests.sdk.platform import Platform, platform

HERE = Path(__file__).parent
NAME = "mini-terminal@1.0.1"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("guide") / "log"
    given = {"MODEL_PATH": "/models/bert"}
    with running(HERE / "guide_env.py", "--", "--verbose", "--gpu", log=log, variables=given) as started:
        yield started.url


@pytest.fixture(autouse=True)
def _address(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUMMY_INSTANCE_IP", server)


def using(work: Callable[[Environment], Awaitable[Any]], name: str = NAME, **options: Any) -> Any:
    async def main() -> Any:
        async with Environment(name, **options) as env:
            return await work(env)

    return run(main())


def call(tool: str, **arguments: Any) -> aenv.ToolResult:
    return using(lambda env: env.call_tool(tool, arguments))


# --- tools


def test_the_package_has_a_version() -> None:
    assert re.match(r"\d+\.\d+", aenv.__version__)


def test_tools_are_listed_with_qualified_names_and_schemas() -> None:
    tools = {tool["name"]: tool for tool in using(lambda env: env.list_tools())}
    assert list(tools) == [f"{NAME}/{name}" for name in ("execute_command", "repeat", "order", "greet", "find_users")]
    command = tools[f"{NAME}/execute_command"]
    assert set(command) == {"name", "description", "inputSchema"}
    assert command["description"] is None
    schema = command["inputSchema"]
    assert schema["type"] == "object"
    assert schema["required"] == ["command"]
    assert schema["properties"] == {"command": {"type": "string"}, "timeout": {"default": 60, "title": "Timeout"}}
    json.dumps(list(tools.values()))


def test_a_docstring_describes_the_tool_and_its_parameters() -> None:
    tools = {tool["name"]: tool for tool in using(lambda env: env.list_tools())}
    described = tools[f"{NAME}/repeat"]
    assert described["description"].startswith("Say it again.\n\nWhatever comes in goes out.")
    assert described["inputSchema"]["properties"]["content"]["description"] == "Any text at all"


@pytest.mark.parametrize("name", ["execute_command", f"{NAME}/execute_command", "mini-terminal/execute_command"])
def test_a_result_has_text_content(name: str) -> None:
    result = using(lambda env: env.call_tool(name, {"command": "echo helloworld", "timeout": 5}))
    assert result.is_error is False
    (block,) = result.content
    assert json.loads(block["text"]) == {"output": ["helloworld\n", True], "returncode": 0}
    assert repr(result) == f"ToolResult(content={[block]!r}, is_error=False)"
    assert set(block) == {"type", "text"}


def test_plain_types_arrive_unchanged() -> None:
    result = call("order", name="tea", count=2, price=1.5, paid=True, tags=["a", "b"])
    assert result.content == [{"type": "text", "text": "2 x tea at 1.5, paid, a+b"}]


def test_optional_parameters_and_defaults_may_be_left_out() -> None:
    assert call("greet").text == "nobody 3"
    assert call("greet", name=None, numbers=[5]).text == "nobody 5"
    assert call("greet", name="Ada").text == "Ada 3"


def test_a_model_can_be_a_parameter() -> None:
    assert call("find_users", params={"query": "q"}).text == "q 10 False"
    assert call("find_users", params={"query": "q", "max_results": 1, "details": True}).text == "q 1 True"
    assert call("find_users", params={"max_results": 1}).is_error


def test_a_failing_tool_gives_an_error_result() -> None:
    result = call("execute_command", command="sleep 5", timeout=0.05)
    assert result.is_error
    assert "timed out" in result.text


def test_a_call_is_logged_with_the_environment_and_the_tool() -> None:
    printed = io.StringIO()
    setup_logging(logging.StreamHandler(printed), "INFO")
    try:
        call("execute_command", command="true")
    finally:
        setup_logging(None)
    words = rf"\[ENV:[^\]]+\] Executing tool: execute_command in environment {NAME}"
    assert re.search(
        rf"^\d{{8}}-\d\d:\d\d:\d\d\.\d{{3}} aenv\.environment INFO: {words}$", printed.getvalue(), re.MULTILINE
    )


def test_a_tool_has_its_own_http_path(server: str) -> None:
    status, answer = fetch(server, "/tools/repeat", {"content": "x"})
    assert (status, answer["success"]) == (200, True)
    assert json.loads(answer["data"]["content"][0]["text"]) == {"result": "x"}


# --- rewards, functions, health


def test_a_reward_is_what_its_function_returns() -> None:
    arguments = {"code": "def hello(): return 'world'", "test_results": {"passed": 5, "failed": 0}}
    reward = using(lambda env: env.call_reward(arguments))
    assert reward == {"score": 0.75, "feedback": "passes; short", "details": {"passed": 5, "failed": 0}}


def test_a_function_is_an_endpoint_and_a_method_call(server: str) -> None:
    wanted = {"status": "success", "data": {"a": [1]}}
    assert using(lambda env: env.call_function("wrap", {"data": {"a": [1]}})) == wanted
    assert fetch(server, "/functions/wrap", {"data": {"a": [1]}}) == (200, {"success": True, "data": wanted})


def test_functions_are_not_listed_as_tools() -> None:
    tools = [tool["name"] for tool in using(lambda env: env.list_tools())]
    assert not [name for name in tools if "wrap" in name or "code_quality" in name]


def test_health_is_the_result_of_the_check() -> None:
    health = using(lambda env: env.check_health())
    assert health["success"] is True
    assert health["data"]["status"] == "healthy"
    assert {"cpu_percent", "memory_percent", "disk_usage"} < set(health["data"])


# --- life


def test_an_environment_is_initialized_used_and_destroyed_by_hand() -> None:
    async def main() -> None:
        env = Environment("my-python-env")
        assert await env.initialize() is True
        assert await env.initialize() is True
        assert len(await env.list_tools()) == 5
        await env.destroy()
        await env.destroy()
        with pytest.raises(EnvironmentError, match="released"):
            await env.list_tools()

    run(main())


def test_the_first_call_initializes() -> None:
    async def main() -> None:
        env = Environment(NAME, ttl="60m")
        assert await env.list_tools()
        assert (await env.get_env_info())["status"] == "Running"
        await env.release()

    run(main())


def test_the_context_manager_releases_when_the_block_fails() -> None:
    async def main() -> Environment:
        with pytest.raises(RuntimeError, match="mine"):
            async with Environment("safe-env") as env:
                raise RuntimeError("mine")
        return env

    assert "not started" in repr(run(main()))


@pytest.mark.parametrize("ttl", ["30m", "2h", "24h", "90s"])
def test_every_setting_is_accepted(ttl: str, server: str) -> None:
    tools = using(
        lambda env: env.list_tools(),
        name="data-analysis-env",
        datasource="/data/workspace",
        ttl=ttl,
        environment_variables={"PYTHONPATH": "/app", "DEBUG": "true"},
        arguments=["--config", "/app/config.yaml"],
        aenv_url=server,
        timeout=60.0,
        max_retries=5,
        api_key="your-api-key",
    )
    assert tools[0]["name"] == "data-analysis-env/execute_command"


def test_variables_and_arguments_are_found_by_the_environments_code() -> None:
    given = using(lambda env: env.call_function("inspect_process", {"variable": "MODEL_PATH"}))
    assert given == {"variable": "/models/bert", "arguments": ["--verbose", "--gpu"]}


def test_a_platform_gets_exactly_the_given_options(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DUMMY_INSTANCE_IP")
    aenv.register_tool(name="t")(lambda: "answer")

    async def create(made: Platform, **options: Any) -> dict[str, Any]:
        monkeypatch.setenv("AENV_SYSTEM_URL", made.url)
        async with Environment("swe-env", **options) as env:
            assert (await env.call_tool("t")).text == "answer"
        return made.created[-1]

    async def main() -> None:
        async with platform(registry) as made:
            assert (await create(made))["ttl"] == ""  # the default of config.json or of the platform
            assert (await create(made, ttl="30m"))["ttl"] == "30m"
            body = await create(
                made,
                datasource="/path/to/dataset",
                environment_variables={"API_KEY": "secret-key"},
                arguments=["--verbose"],
            )
            assert (body["datasource"], body["arguments"]) == ("/path/to/dataset", ["--verbose"])
            assert body["environment_variables"]["API_KEY"] == "secret-key"
            assert made.instances == {}

    run(main())


def test_the_ttl_of_a_project_is_read_from_its_config() -> None:
    text = '{"name": "my-env", "version": "1.0.0", "deployConfig": {"ttl": "2h"}}'
    assert str(manifest.parse(text).deploy_config.ttl) == "2h"


def test_a_missing_server_is_reported_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUMMY_INSTANCE_IP", "http://127.0.0.1:1")

    async def main() -> None:
        env = Environment(NAME, startup_timeout=1)
        with pytest.raises(AEnvError) as caught:
            await env.initialize()
        assert caught.value.fault in ("infra", "timeout")
        await asyncio.sleep(0)

    run(main())


# --- an interactive session

SESSION = f'''
import asyncio

from aenv import Environment


async def main():
    terminal = Environment("{NAME}", ttl="60m")
    try:
        tools = await terminal.list_tools()
        print("tools:", [tool["name"] for tool in tools][:1])
    except Exception as error:
        print("no tools:", error)
    while True:
        line = input(">>> ").strip()
        if line.lower() in ("exit", "quit"):
            print("bye")
            break
        result = await terminal.call_tool("{NAME}/execute_command", {{"command": line, "timeout": 5}})
        print("result:\\n", result)
    await terminal.release()
    print("released")


if __name__ == "__main__":
    asyncio.run(main())
'''


@pytest.mark.parametrize("goodbye", ["exit", "QUIT"])
def test_a_terminal_is_used_line_by_line(goodbye: str, server: str, run_script: Callable[..., str]) -> None:
    printed = run_script(SESSION, f"echo one\nfalse\n{goodbye}\n", {"DUMMY_INSTANCE_IP": server})
    assert f"tools: ['{NAME}/execute_command']" in printed
    assert r'"output":["one\\n",true],"returncode":0' in printed
    assert '"returncode":1' in printed
    assert printed.endswith("bye\nreleased\n")
