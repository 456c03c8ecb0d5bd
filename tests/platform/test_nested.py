"""Environments that code in an instance of ``aenv serve`` opens: as which user, within which limits, and what not."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aenv import Environment
from aenv.client.platform_client import ApiClient
from aenv.errors import AEnvError
from tests.conftest import fetch, run
from tests.nested_envs import AGENT, publish
from tests.platform.collector import Collector, collecting
from tests.platform.machine import Machine
from tests.platform.parts import Served, serving

Tokens = Callable[..., str]


@pytest.fixture(scope="module")
def published(sandboxes: None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="aenv-t-", dir="/tmp"))
    asyncio.run(publish_all(folder))
    yield folder
    _remove(folder)


@pytest.fixture
def data(sandboxes: None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="aenv-t-", dir="/tmp"))
    asyncio.run(publish_all(folder))
    yield folder
    _remove(folder)


async def publish_all(data: Path) -> None:
    await publish(data, "outer", ["inner@^1", "caller", "outer"])
    await publish(data, "inner", ["innermost"])
    await publish(data, "innermost", [])
    await publish(data, "inner", [], "2.0.0")
    await publish(data, "caller", [], network=["$MODEL_URL"])


def _remove(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(folder)


async def instances(platform: Served, token: str) -> dict[str, Any]:
    async with ApiClient(platform.url, api_key=token) as api:
        return {each.id: each for each in await api.list_env_instances()}


async def ask(env: Environment, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
    """Send a request from inside the instance to its platform."""
    arguments = {"method": method, "path": path, "body": json.dumps(body) if body is not None else ""}
    result = await env.call_tool("ask", {**arguments, "headers": headers})
    assert not result.is_error, result
    status, text = result.data
    return status, text


@pytest.mark.long
def test_environments_nest_for_the_user_who_created_the_outermost(platform: Served, tokens: Tokens) -> None:
    async def main() -> None:
        async with platform.environment("outer", tokens("ann")) as env:
            result = await env.call_tool("chain", {"names": ["inner", "innermost"]})
            assert result.data == ["outer", "inner", "innermost"], result
            opened = (await env.call_tool("hold", {"name": "inner"})).data
            assert set(await instances(platform, tokens("ann"))) == {env.instance_id, opened}
            assert await instances(platform, tokens("bob")) == {}
        async with asyncio.timeout(30):
            while await instances(platform, tokens("ann")):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    run(main())


def test_instances_that_it_did_not_open_do_not_exist_for_it(platform: Served, tokens: Tokens) -> None:
    async def main() -> None:
        async with (
            platform.environment("outer", tokens("ann")) as env,
            platform.environment("inner", tokens("ann")) as own_users,
            platform.environment("inner", tokens("bob")) as others,
        ):
            opened = (await env.call_tool("hold", {"name": "inner"})).data
            assert (await ask(env, "GET", f"/env-instance/{opened}"))[0] == 200
            for name in (own_users.instance_id, others.instance_id, env.instance_id, "inner-00000000"):
                for method, path in (("GET", ""), ("DELETE", ""), ("PUT", "/ttl")):
                    status, said = await ask(env, method, f"/env-instance/{name}{path}")
                    assert (status, "has opened no instance" in said) == (404, True), (name, method, said)
                call = {"AEnvCore-EnvInstance-ID": str(name)}
                assert (await ask(env, "POST", "/tools/chain", {"names": []}, **call))[0] == 404
                assert (await ask(env, "POST", f"/instance/{name}/tools/chain", {"names": []}))[0] == 404
            assert set(await instances(platform, tokens("bob"))) == {others.instance_id}

    run(main())


def test_nothing_else_of_the_platform_is_reachable(platform: Served, tokens: Tokens) -> None:
    admin = {"authorization": f"Bearer {platform.first_token}"}
    requests = (
        ("GET", "/env-instance/list"), ("GET", "/env-instance/*/list"), ("GET", "/metrics"), ("GET", "/openapi.json"),
        ("GET", "/api/v1/environments"), ("POST", "/lease"), ("POST", "/env-service"), ("GET", "/env-service/*/list"),
        ("POST", "/token/"), ("GET", "/health"), ("GET", "http://127.0.0.1/env-instance/list"), ("GET", "/service/x/"),
        ("GET", "/port/x/80/"),
    )  # fmt: skip

    async def main() -> None:
        async with platform.environment("outer", tokens("ann")) as env:
            for method, path in requests:
                status, said = await ask(env, method, path, **admin)
                assert status in (403, 404), (method, path, status, said)
            opened = (await env.call_tool("hold", {"name": "inner"})).data
            status, said = await ask(env, "GET", f"/env-instance/{opened}")
            found = json.loads(said)["data"]
            assert [found.get(name) for name in ("ip", "data_url", "token", "mcp_url", "account")] == [None] * 5
            proxy = {"AEnvCore-MCPProxy-URL": f"http://{opened}:8081"}
            assert (await ask(env, "POST", "/tools/chain", {"names": []}, **proxy))[0] == 403

    run(main())


def test_a_request_from_inside_chooses_little(platform: Served, tokens: Tokens) -> None:
    choices: dict[str, Any] = {
        "network": "host", "source": "/etc", "hub": {"url": "http://127.0.0.1"}, "fetching": {"https_proxy": "x"},
        "mount_points": [{"a": "b"}], "keep_alive": True, "cpu": "2", "memory": "9Gi", "storage": "9Gi", "gpu": 1,
        "datasource": "/etc",
    }  # fmt: skip

    async def main() -> None:
        async with platform.environment("outer", tokens("ann")) as env:
            for field, value in choices.items():
                status, said = await ask(env, "POST", "/env-instance", {"envName": "inner", field: value})
                assert (status, f"{field}: code in an instance cannot" in said) == (400, True), (field, said)
            status, said = await ask(env, "POST", "/env-instance", {"envName": "inner@2.0.0"})
            assert (status, "may open inner@^1, but this is inner@2.0.0" in said) == (403, True)
            body = {"envName": "inner", "owner": "root", "labels": {"experiment": "mine"}, "count": 50}
            status, said = await ask(env, "POST", "/env-instance", body)
            assert (status, json.loads(said)["data"]["owner"]) == (200, None)
            assert json.loads(said)["data"]["env"]["version"] == "1.0.0"
            assert len(await instances(platform, tokens("ann"))) == 2

    run(main())


def test_a_variable_that_opens_the_network_comes_from_the_caller_outside(platform: Served, tokens: Tokens) -> None:
    given, other = "http://model.example:8000/v1", "http://other.example/v1"

    async def main() -> None:
        async with platform.environment("outer", tokens("ann"), environment_variables={"MODEL_URL": given}) as env:
            refused = await env.call_tool("hold", {"name": "caller", "variables": {"MODEL_URL": other}})
            assert refused.is_error
            assert "MODEL_URL opens the network of caller@1.0.0" in refused.content[0]["text"]
            opened = (await env.call_tool("hold", {"name": "caller", "variables": {"MODEL_URL": given}})).data
            assert (await instances(platform, tokens("ann")))[opened].network == ["model.example:8000"]

    run(main())


def test_the_id_of_a_request_finds_no_instance_of_another(platform: Served, tokens: Tokens) -> None:
    async def main() -> None:
        body = {"envName": "inner", "request_id": "one"}
        async with (
            platform.environment("outer", tokens("ann")) as env,
            ApiClient(platform.url, api_key=tokens("ann")) as api,
        ):
            own = {"authorization": f"Bearer {tokens('ann')}"}
            outside = (await asyncio.to_thread(fetch, platform.url, "/env-instance", body, headers=own))[1]["data"][
                "id"
            ]
            made = [json.loads((await ask(env, "POST", "/env-instance", body))[1])["data"]["id"] for _ in range(2)]
            assert made[0] == made[1] != outside
            await api.delete_env_instance(outside)

    run(main())


def test_the_time_to_live_is_within_that_of_the_parent(platform: Served, tokens: Tokens) -> None:
    async def main() -> None:
        async with platform.environment("outer", tokens("ann"), ttl="5m") as env:
            opened = (await env.call_tool("hold", {"name": "inner", "ttl": "20h"})).data
            found = await instances(platform, tokens("ann"))
            assert found[opened].expires_at <= found[str(env.instance_id)].expires_at
            status, said = await ask(env, "PUT", f"/env-instance/{opened}/ttl", {"ttl": "30h"})
            assert status == 200
            assert json.loads(said)["data"]["expires_at"] <= found[str(env.instance_id)].expires_at

    run(main())


def test_the_allowance_of_the_user_counts_inside(platform: Served) -> None:
    token = platform.token("cy", "user", "--instances", "2")

    async def main() -> None:
        async with platform.environment("outer", token) as env:
            assert not (await env.call_tool("hold", {"name": "inner"})).is_error
            refused = await env.call_tool("hold", {"name": "inner"})
            assert refused.is_error
            assert "2 instances" in refused.content[0]["text"], refused
            assert len(await instances(platform, token)) == 2

    run(main())


def test_a_revoked_token_opens_nothing_more(platform: Served, tokens: Tokens) -> None:
    made = platform.aenv("serve", "token", "create", "--user", "dan", "--role", "user")

    async def main() -> None:
        async with platform.environment("outer", made["token"]) as env:
            assert (await env.call_tool("chain", {"names": ["inner"]})).data == ["outer", "inner"]
            platform.aenv("serve", "token", "revoke", made["id"])
            name = env.instance_id
            async with Environment("outer", aenv_url=platform.url, api_key=platform.first_token, instance_id=name) as a:
                refused = await a.call_tool("chain", {"names": ["inner"]})
                assert "the token was revoked" in refused.content[0]["text"], refused
                async with ApiClient(platform.url, api_key=platform.first_token) as api:
                    await api.delete_env_instance(str(name))

    run(main())


@pytest.mark.long
def test_one_trace_has_the_calls_of_all_levels(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector:
        said = traced_call(collector, data, monkeypatch, "outer", "chain", names=["inner", "innermost"])
        assert said == "['outer', 'inner', 'innermost']"
        assert len(collector.named("POST /tools/chain")) == 3
        assert len(collector.named("POST /env-instance")) == 3
        assert len({span.trace for span in collector.spans}) == 1


@pytest.mark.long
def test_agents_nested_three_deep_have_one_trace_in_which_each_call_is_below_its_callers(
    sandboxes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Path(tempfile.mkdtemp(prefix="aenv-t-", dir="/tmp"))
    try:
        for name, opens in {"director": ["manager"], "manager": ["clerk"], "clerk": []}.items():
            asyncio.run(publish(data, name, opens, code=AGENT))
        with collecting() as collector:
            said = traced_call(collector, data, monkeypatch, "director", "chat", message="the books")
            assert said == "director heard: manager heard: clerk did the books"
    finally:
        _remove(data)
    assert len({span.trace for span in collector.spans}) == 1
    parents = {span.id: span.parent for span in collector.spans}
    chats = sorted(collector.named("POST /tools/chat"), key=lambda span: span.began)
    assert len(chats) == 3
    for caller, called in itertools.pairwise(chats):
        assert caller.id in ancestors(called.id, parents), [(s.name, s.id, s.parent) for s in collector.spans]
        assert caller.began <= called.began <= called.ended <= caller.ended


def ancestors(span: str, parents: dict[str, str]) -> list[str]:
    """Return the spans above a span, nearest first."""
    found = []
    while parents.get(span):
        span = parents[span]
        found.append(span)
    return found


def traced_call(
    collector: Collector, data: Path, monkeypatch: pytest.MonkeyPatch, name: str, tool: str, **arguments: Any
) -> str:
    """Call a tool in a program, with everything traced; return the result."""
    code = """
import asyncio, json, sys
from aenv import Environment

async def main():
    async with Environment(sys.argv[2], aenv_url=sys.argv[1]) as env:
        print((await env.call_tool(sys.argv[3], json.loads(sys.argv[4]))).data)

asyncio.run(main())
"""
    for variable, value in collector.variables().items():
        monkeypatch.setenv(variable, value)
    with serving(data, auth=False) as platform:
        command = [sys.executable, "-c", code, platform.url, name, tool, json.dumps(arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_an_engine_whose_instances_cannot_open_environments_refuses_by_name(data: Path) -> None:
    with serving(data, "--engine", "http://127.0.0.1:9", auth=False) as platform:

        async def main() -> None:
            with pytest.raises(AEnvError, match="cannot open other environments"):
                await platform.environment("outer", max_retries=0).initialize()

        run(main())


@pytest.mark.long
def test_an_instance_opens_environments_under_the_next_server_too(data: Path) -> None:
    machine = Machine(data)
    with serving(data, "--adopt-within", "120") as first:
        token = first.token("ann", "user", "--instances", "3")

        async def before() -> tuple[str, str]:
            async with first.environment("outer", token, keep_alive=True) as env:
                return str(env.instance_id), str((await env.call_tool("hold", {"name": "inner"})).data)

        outer, opened = run(before())
        first.kill(signal.SIGKILL)
    with serving(data, "--adopt-within", "120") as second:

        async def after() -> None:
            async with Environment("outer", aenv_url=second.url, api_key=token, instance_id=outer) as again:
                assert set(await instances(second, token)) == {again.instance_id, opened}
                chained = await again.call_tool("chain", {"names": ["inner"]})
                assert chained.data == ["outer", "inner"], chained
                assert "3 instances" in (await again.call_tool("chain", {"names": ["inner", "innermost"]})).text
                async with ApiClient(second.url, api_key=token) as api:
                    await api.delete_env_instance(str(again.instance_id))
            async with asyncio.timeout(30):
                while await instances(second, token):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

        run(after())
    machine.is_clean()
