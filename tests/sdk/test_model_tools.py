"""Tools for plain model APIs: definitions, the dispatcher, and the types that the vendors' packages publish."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aenv import Environment, SyncEnvironment
from aenv.errors import InvalidUse, ToolTimeoutError
from aenv.sdk.model_formats import FORMATS
from tests.scripted_model import scripted_model, tool_call
from tests.sdk.conftest import in_env

HERE = Path(__file__).parent
PACKAGES = ("openai==3.49.0", "anthropic==2.8.0", "google-genai==3.1.0")
TINY_PNG = "iVBORw0KGgo"

pytestmark = pytest.mark.usefixtures("everything")


def response(api: str, *calls: tuple[str, Any]) -> dict[str, Any]:
    """A response of that API with these calls; text as arguments stays as it is."""
    texts = [given if isinstance(given, str) else json.dumps(given) for _, given in calls]
    if api == "openai-chat":
        made = [
            {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": text}}
            for n, ((name, _), text) in enumerate(zip(calls, texts, strict=True))
        ]
        return {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": made or None}}]}
    if api == "openai-responses":
        items = [
            {"type": "function_call", "call_id": f"c{n}", "name": name, "arguments": text}
            for n, ((name, _), text) in enumerate(zip(calls, texts, strict=True))
        ]
        return {"output": [{"type": "reasoning", "summary": []}, *items]}
    if api == "anthropic":
        blocks = [
            {"type": "tool_use", "id": f"c{n}", "name": name, "input": given} for n, (name, given) in enumerate(calls)
        ]
        return {"role": "assistant", "content": [{"type": "text", "text": "I will."}, *blocks]}
    parts = [{"functionCall": {"id": f"c{n}", "name": name, "args": given}} for n, (name, given) in enumerate(calls)]
    return {"candidates": [{"content": {"role": "model", "parts": [{"text": "I will."}, *parts]}}]}


def texts_of(api: str, messages: list[dict[str, Any]]) -> list[str]:
    """The text of each result, as the model reads it."""
    if api == "openai-chat":
        return [each["content"] for each in messages if each["role"] == "tool"]
    if api == "openai-responses":
        return [each["output"] for each in messages]
    if api == "anthropic":
        assert len(messages) == 1
        return [block["content"][0]["text"] for block in messages[0]["content"]]
    assert len(messages) == 1
    answers = [part["functionResponse"]["response"] for part in messages[0]["parts"]]
    return [answer.get("output", answer.get("error")) for answer in answers]


def answered(api: str, *calls: tuple[str, Any]) -> list[dict[str, Any]]:
    async def use(env: Environment) -> Any:
        return await (await env.tools_for(api)).answer(response(api, *calls))

    messages: list[dict[str, Any]] = in_env(use)
    return messages


@pytest.mark.parametrize("api", FORMATS)
def test_a_models_calls_are_answered_in_order(api: str) -> None:
    messages = answered(api, ("echo", {"content": "one"}), ("renamed", {"x": 2}), ("echo", {"content": "three"}))
    assert texts_of(api, messages) == ['{"result":"one"}', "2", '{"result":"three"}']


@pytest.mark.parametrize("api", FORMATS)
def test_every_mistake_of_a_model_is_a_result_with_plain_text(api: str) -> None:
    mistakes = [
        ("echo", '{"content": "never clos'),
        ("echo", "[1, 2]"),
        ("no_such_tool", {}),
        ("echo", {"contents": "x"}),
        ("fails", {"message": "the author's words"}),
    ]
    said = texts_of(api, answered(api, *mistakes))
    assert "not valid JSON" in said[0]
    assert "one JSON object, not an array" in said[1]
    assert said[2].startswith("Unknown tool: no_such_tool; available tools: echo, ")
    assert "invalid arguments: content: missing" in said[3]
    assert said[4] == "Error calling tool 'fails': the author's words"


@pytest.mark.parametrize("api", FORMATS)
def test_a_response_without_calls_needs_no_message(api: str) -> None:
    assert answered(api) == []


def test_errors_are_marked_where_the_api_has_a_mark_for_them() -> None:
    (message,) = answered("anthropic", ("fails", {}), ("echo", {"content": "x"}))
    assert [block["is_error"] for block in message["content"]] == [True, False]
    (message,) = answered("gemini", ("fails", {}), ("echo", {"content": "x"}))
    assert [list(part["functionResponse"]["response"]) for part in message["parts"]] == [["error"], ["output"]]


def test_images_reach_the_model_in_each_api() -> None:
    call = ("give", {"what": "mixed"})
    tool, user = answered("openai-chat", call)
    assert tool == {"role": "tool", "tool_call_id": "c0", "content": "look:"}
    assert user["role"] == "user"
    assert user["content"][1]["image_url"]["url"].startswith(f"data:image/png;base64,{TINY_PNG}")
    (item,) = answered("openai-responses", call)
    assert [part["type"] for part in item["output"]] == ["input_text", "input_image"]
    (message,) = answered("anthropic", call)
    assert message["content"][0]["content"][1]["source"]["media_type"] == "image/png"
    (message,) = answered("gemini", call)
    assert message["parts"][0]["functionResponse"]["parts"][0]["inlineData"]["mimeType"] == "image/png"


def test_a_single_call_can_be_answered_too() -> None:
    async def use(env: Environment) -> Any:
        chat = await env.tools_for("openai-chat")
        call = {"id": "c9", "type": "function", "function": {"name": "echo", "arguments": '{"content": "x"}'}}
        return await chat.answer(call)

    assert in_env(use) == [{"role": "tool", "tool_call_id": "c9", "content": '{"result":"x"}'}]


def test_a_failure_of_the_instance_is_an_exception_and_no_result() -> None:
    async def use(env: Environment) -> Any:
        chat = await env.tools_for("openai-chat")
        await chat.answer(response("openai-chat", ("nap_async", {"seconds": 30})), timeout=0.1)

    with pytest.raises(ToolTimeoutError):
        in_env(use)


def test_an_unknown_api_and_a_foreign_object_are_refused() -> None:
    async def unknown(env: Environment) -> Any:
        await env.tools_for("openai")

    with pytest.raises(InvalidUse, match="openai-chat, openai-responses, anthropic, gemini"):
        in_env(unknown)

    async def foreign(env: Environment) -> Any:
        await (await env.tools_for("openai-chat")).answer(3)

    with pytest.raises(InvalidUse, match="not int"):
        in_env(foreign)


def test_the_blocking_environment_has_the_dispatcher_too() -> None:
    with SyncEnvironment("everything@1.0.0") as env:
        tools = env.tools_for("openai-chat")
        assert tools.definitions[0]["function"]["name"] == "echo"
        (message,) = tools.answer(response("openai-chat", ("echo", {"content": "x"})))
    assert message["content"] == '{"result":"x"}'


def test_malformed_json_does_not_abort_a_run_of_openai_agents() -> None:
    from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner
    from openai import AsyncOpenAI

    def model_says(messages: list[dict[str, Any]]) -> Any:
        results = [each["content"] for each in messages if each["role"] == "tool"]
        if not results:
            broken = tool_call("echo", {})
            broken["tool_calls"][0]["function"]["arguments"] = '{"content": "x'
            return broken
        return tool_call("fails", {}) if len(results) == 1 else "done"

    async def use(env: Environment) -> Any:
        client = AsyncOpenAI(base_url=model.url, api_key="none")
        agent = Agent(
            name="a", tools=await env.list_openai_tools(), model=OpenAIChatCompletionsModel("scripted", client)
        )
        done = await Runner.run(agent, "go", run_config=RunConfig(tracing_disabled=True))
        await client.close()
        return done.final_output

    with scripted_model(model_says) as model:
        assert in_env(use) == "done"
    said = [each["content"] for each in model.asked[-1]["messages"] if each["role"] == "tool"]
    assert said[0].startswith("Error calling tool 'echo': the arguments are not valid JSON")
    assert said[1] == "Error calling tool 'fails': the author's words"


@pytest.mark.long
def test_the_vendors_packages_accept_definitions_and_messages(vendors: Path) -> None:
    calls = (("echo", {"content": "x"}), ("give", {"what": "mixed"}), ("fails", {}), ("give", {"what": "none"}))

    async def use(env: Environment) -> Any:
        made = {}
        for api in FORMATS:
            tools = await env.tools_for(api)
            made[api] = {"definitions": tools.definitions, "messages": await tools.answer(response(api, *calls))}
        return made

    done = subprocess.run(
        [vendors, "-P", HERE / "vendor_types.py"],
        input=json.dumps(in_env(use)),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1] / "src")},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)
    assert read == {
        "openai-chat": [["echo", '{"content": ', "c1"]],
        "openai-responses": [["echo", '{"content": ', "c1"]],
        "anthropic": [["echo", {"content": "x"}, "c1"]],
        "gemini": [["echo", {"content": "x"}, "c1"]],
    }


@pytest.fixture(scope="module")
def vendors(pytestconfig: pytest.Config) -> Path:
    """Python with the vendors' packages, installed once and kept in pytest's cache."""
    cache = getattr(pytestconfig, "cache", None)  # absent with -p no:cacheprovider
    folder = (cache.mkdir("vendors") if cache else Path("/tmp/aenv-vendors")) / "-".join(PACKAGES)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:  # another process of this run may install them, too
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _install(folder)
    return folder / "bin" / "python"


def _install(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    install = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", *PACKAGES]
    done = subprocess.run(install, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        if "connection" in done.stderr.lower() or "No matching distribution" in done.stderr:
            pytest.skip(f"the package registry cannot be reached: {done.stderr.strip().splitlines()[-1]}")
        raise AssertionError(done.stderr)
    (folder / "complete").touch()
