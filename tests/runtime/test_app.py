"""An instance over plain HTTP, as existing clients call it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aenv import register_function, register_health, register_reward, register_tool
from aenv.authoring.declarations import Registry
from aenv.testing import Server, running
from tests.conftest import ENVS, afetch, fetch, run, served


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(ENVS / "everything.py", log=tmp_path_factory.mktemp("server") / "log") as server:
        yield server


def tool(server: Server, name: str, arguments: Any = None) -> dict[str, Any]:
    status, body = fetch(server.url, f"/tools/{name}", arguments or {})
    assert status == 200
    assert body["success"]
    data: dict[str, Any] = body["data"]
    return data


def text(data: dict[str, Any]) -> str:
    [block] = data["content"]
    assert block["type"] == "text"
    return str(block["text"])


def test_tools_are_listed_with_names_descriptions_and_schemas(server: Server) -> None:
    status, body = fetch(server.url, "/tools")
    assert status == 200
    tools = {t["name"]: t for t in body["data"]}
    assert "original_name" not in tools
    assert "hidden" not in tools
    assert tools["renamed"]["description"] == "A description of its own."
    assert tools["echo"]["description"].startswith("Give back what came in.")
    assert tools["echo"]["inputSchema"]["properties"]["content"]["description"] == "Anything at all on two lines."
    assert tools["search"]["outputSchema"]["properties"]["results"]["type"] == "array"
    assert tools["kinds"]["inputSchema"]["properties"]["mode"]["enum"] == ["fast", "slow"]


def test_a_tool_answers(server: Server) -> None:
    assert tool(server, "echo", {"content": "hi"}) == {
        "content": [{"type": "text", "text": '{"result":"hi"}'}],
        "is_error": False,
        "is_json": True,
    }
    assert text(tool(server, "echo_async", {"content": "hi"})) == '{"result":"hi"}'
    assert text(tool(server, "hidden")) == "found"


def test_every_kind_of_parameter_arrives(server: Server) -> None:
    sent = {"s": "x", "i": 1, "f": 2, "b": True, "tags": ["t"], "options": {"a": [1]}, "color": "blue", "mode": "slow"}
    got = text(tool(server, "kinds", sent))
    assert got == (
        '{"s":"x","i":1,"f":2.0,"b":true,"tags":["t"],"maybe":null,"options":{"a":[1]},"color":"blue","mode":"slow",'
        '"timeout":60}'
    )


def test_wrong_arguments_are_the_policys_fault(server: Server) -> None:
    data = tool(server, "echo", {"content": 3})
    assert data["is_error"]
    assert data["fault"] == "policy"
    assert "content: Input should be a valid string" in text(data)
    assert tool(server, "nonsense")["fault"] == "policy"
    assert text(tool(server, "nonsense")) == "Unknown tool: nonsense"
    assert fetch(server.url, "/tools/echo", b"{broken")[1]["data"]["fault"] == "policy"


def test_a_raising_tool_is_an_error_and_the_server_lives_on(server: Server) -> None:
    data = tool(server, "fails")
    assert data["is_error"]
    assert data["fault"] == "env"
    assert text(data) == "Error calling tool 'fails': the author's words"
    assert "SystemExit: 3" in text(tool(server, "quits"))
    assert "is not JSON" in text(tool(server, "unserialisable"))
    assert not tool(server, "echo", {"content": "x"})["is_error"]


def test_the_log_has_the_traceback_and_not_the_arguments(server: Server) -> None:
    tool(server, "echo", {"content": "s3cret-argument"})
    tool(server, "fails", {"message": "see the log"})
    log = server.log.read_text()
    assert "RuntimeError: see the log" in log
    assert 'everything.py", line' in log
    assert "aenv/runtime" not in log
    assert "s3cret-argument" not in log


def test_functions_answer_in_the_envelope_of_existing_clients(server: Server) -> None:
    assert fetch(server.url, "/functions/add", {"a": 10, "b": 20}) == (200, {"success": True, "data": 30})
    assert fetch(server.url, "/functions/add_async", {"a": 1})[1]["data"] == 2
    status, body = fetch(server.url, "/functions/fails_too", {})
    assert status == 500
    assert (body["success"], body["error"], body["fault"]) == (False, "no good", "env")
    status, body = fetch(server.url, "/functions/add", {"a": 1, "b": "two"})
    assert (status, body["fault"], body["code"]) == (422, "caller", "invalid_arguments")
    status, body = fetch(server.url, "/functions/nothing", {})
    assert (status, body["code"]) == (404, "not_found")
    assert "add, add_async" in body["error"]
    assert fetch(server.url, "/nowhere")[0] == 404


def test_a_custom_endpoint_answers_under_its_path_and_its_name(server: Server) -> None:
    answer = {"greeting": "hello youhello you", "tags": ["a", "b"]}
    assert fetch(server.url, "/custom/greet?name=you&times=2&tags=a&tags=b") == (200, {"success": True, "data": answer})
    sent = {"name": "you", "times": 2, "tags": ["a", "b"]}
    assert fetch(server.url, "/functions/greet", sent)[1]["data"] == answer
    assert fetch(server.url, "/custom/greet?name=you&times=many")[0] == 422
    assert fetch(server.url, "/custom/greet", {}, method="POST")[0] == 404


def test_functions_are_listed(server: Server) -> None:
    listed = fetch(server.url, "/functions/list")[1]["data"]
    assert listed["total"] == len(listed["functions"])
    [add] = [f for f in listed["functions"] if f["name"] == "add"]
    assert add["endpoint"] == "/functions/add"
    assert add["parameters"]["a"] == {"type": "integer", "default": None}
    assert add["is_async"] is False
    assert [r["name"] for r in listed["reward"]] == ["completion"]
    assert [h["name"] for h in listed["health"]] == ["health"]


def test_the_reward_answers_in_the_envelope_of_existing_clients(server: Server) -> None:
    assert fetch(server.url, "/task/reward", {"status": {"completed": True}}) == (200, {"success": True, "data": 1.0})
    assert fetch(server.url, "/task/reward", {})[0] == 422


def test_a_health_check_of_the_author_answers(server: Server) -> None:
    answer = {"success": True, "data": {"status": "healthy", "depth": 3, "mine": True}}
    assert fetch(server.url, "/health?depth=3") == (200, answer)


def test_the_default_health_answer_is_that_of_existing_clients(registry: Registry) -> None:
    register_tool(name="t")(lambda: 1)

    async def talk() -> Any:
        async with served(registry) as url:
            return await afetch(url, "/health")

    status, body = run(talk())
    assert status == 200
    assert body["data"]["status"] == "success"
    assert body["data"]["details"] == {"tool_count": 1}
    assert body["data"]["last_active"] > 0


def test_a_health_check_that_raises_is_503_and_says_so(registry: Registry) -> None:
    @register_health
    def broken() -> dict:
        raise OSError("disk on fire")

    async def talk() -> Any:
        async with served(registry) as url:
            return await afetch(url, "/health")

    status, body = run(talk())
    assert status == 503
    assert body["data"] == {"status": "error", "message": "disk on fire"}


def test_one_of_several_rewards_is_chosen_by_name(registry: Registry) -> None:
    register_reward(name="style")(lambda: 0.25)
    register_reward(name="speed")(lambda: 0.5)

    async def talk() -> Any:
        async with served(registry) as url:
            return [
                await afetch(url, path, {})
                for path in ("/task/reward", "/task/reward?reward=speed", "/task/reward?reward=luck")
            ]

    ambiguous, speed, unknown = run(talk())
    assert ambiguous[0] == 409
    assert "name one of: style, speed" in ambiguous[1]["error"]
    assert speed == (200, {"success": True, "data": 0.5})
    assert unknown[0] == 404


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_a_reward_that_is_no_number_is_an_error_and_not_a_zero(
    registry: Registry, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    register_reward(name="odd")(lambda: value)

    async def talk() -> Any:
        async with served(registry) as url:
            return await afetch(url, "/task/reward", {})

    status, body = run(talk())
    assert status == 500
    assert body["fault"] == "env"
    assert "data" not in body


def test_parallel_sync_tools_run_at_once_and_health_answers_meanwhile(registry: Registry) -> None:
    everyone = threading.Barrier(9)  # eight tools and the health check meet here, or nobody goes on

    @register_tool
    def meet() -> str:
        everyone.wait(30)
        return "met"

    @register_function
    def join() -> str:
        everyone.wait(30)
        return "joined"

    async def talk() -> Any:
        async with served(registry) as url:
            tools = [afetch(url, "/tools/meet", {}) for _ in range(8)]
            waiting = asyncio.gather(*tools)
            while everyone.n_waiting < 8:
                assert (await afetch(url, "/health"))[0] == 200
            await afetch(url, "/functions/join", {})
            return await waiting

    assert all(body["data"]["content"][0]["text"] == "met" for _, body in run(talk()))


def test_health_answers_while_an_async_tool_blocks(registry: Registry) -> None:
    release, entered = threading.Event(), threading.Event()

    @register_tool
    async def block() -> str:
        entered.set()
        release.wait(30)
        return "unblocked"

    async def talk() -> Any:
        async with served(registry) as url:
            blocked = asyncio.create_task(afetch(url, "/tools/block", {}))
            await asyncio.to_thread(entered.wait, 30)
            health = await afetch(url, "/health")
            release.set()
            await blocked
            return health

    assert run(talk())[0] == 200


def test_a_token_is_required_where_one_is_set(registry: Registry) -> None:
    register_tool(name="t")(lambda: 1)

    async def talk() -> Any:
        async with served(registry, token="s3cret") as url:
            answers = []
            for path, headers in (
                ("/tools", None),
                ("/tools", {"authorization": "Bearer wrong"}),
                ("/tools", {"authorization": "Bearer s3cret"}),
                ("/mcp", None),
                ("/health", None),
            ):
                answers.append(await asyncio.to_thread(fetch, url, path, headers=headers))
            return answers

    none, wrong, right, mcp, health = run(talk())
    assert (none[0], wrong[0], mcp[0]) == (401, 401, 401)
    assert "Bearer" in none[1]["error"]
    assert right[0] == 200
    assert health == (200, {"success": True, "data": {"status": "healthy"}})


def test_without_a_token_the_health_check_runs_whatever_the_caller_sends(registry: Registry) -> None:
    register_tool(name="t")(lambda: 1)

    @register_health
    def check() -> dict[str, str]:
        return {"status": "error", "message": "the database is gone"}

    async def talk() -> Any:
        async with served(registry) as url:
            headers = {"authorization": "Bearer anything"}
            return [await asyncio.to_thread(fetch, url, "/health", headers=given) for given in (None, headers)]

    without, sent = run(talk())
    assert without == sent
    assert sent[1]["data"]["status"] == "error"


@pytest.mark.parametrize("header", ["Host", "Origin"])
def test_a_web_page_cannot_reach_a_server_on_loopback(server: Server, header: str) -> None:
    status, body = fetch(
        server.url, "/tools", headers={header: "http://evil.example" if header == "Origin" else "evil.example:80"}
    )
    assert status == 403
    assert "is not this machine" in body["error"]
    assert (
        fetch(server.url, "/tools", headers={header: "http://localhost:6274" if header == "Origin" else "localhost:1"})[
            0
        ]
        == 200
    )


def test_sixteen_megabytes_pass_both_ways(server: Server) -> None:
    big = "é☃" * (16 * 1024 * 1024 // 5)
    assert len(text(tool(server, "echo", {"content": big}))) == len(big) + len('{"result":""}')


def test_a_body_over_the_limit_is_413(tmp_path: Path) -> None:
    with running(ENVS / "everything.py", "--max-body", "1000", log=tmp_path / "log") as server:
        assert fetch(server.url, "/tools/echo", {"content": "x" * 2000})[0] == 413
        assert fetch(server.url, "/tools/echo", {"content": "x"})[0] == 200


def test_variables_and_arguments_reach_the_authors_code(tmp_path: Path) -> None:
    with running(
        ENVS / "everything.py", "--", "--config", "a.yaml", "-v",
        log=tmp_path / "log", variables={"MINE": "yes", "AENV_TOKEN": "tok"},
    ) as server:  # fmt: skip
        headers = {"authorization": "Bearer tok"}
        got = fetch(server.url, "/tools/variable", {"name": "MINE"}, headers=headers)[1]["data"]
        assert text(got) == "yes"
        assert fetch(server.url, "/tools/variable", {"name": "AENV_TOKEN"}, headers=headers)[1]["data"]["content"] == []
        assert (
            text(fetch(server.url, "/tools/arguments", {}, headers=headers)[1]["data"]) == '["--config","a.yaml","-v"]'
        )


def test_a_failing_tool_is_logged_once(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    @register_tool
    def fails() -> None:
        raise KeyError("k")

    async def talk() -> Any:
        async with served(registry) as url:
            return await afetch(url, "/tools/fails", {})

    with caplog.at_level(logging.ERROR, "aenv"):
        run(talk())
    assert [r.getMessage() for r in caplog.records] == ["tool fails raised KeyError"]
