"""``aenv serve`` from outside: real instances, over TCP, with tokens."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from prometheus_client.parser import text_string_to_metric_families

from aenv.client.hub_client import HubClient
from aenv.client.platform_client import ApiClient
from aenv.errors import EnvironmentError, Forbidden, InstanceEnded, NotFound, Unauthorized
from tests.conftest import fetch, run
from tests.hub.parts import push
from tests.platform.parts import Served, environ, hang_up, serving

Tokens = Callable[..., str]


def bearer(token: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}", **more}


def make(platform: Served, token: str, **request: Any) -> dict[str, Any]:
    status, body = fetch(platform.url, "/env-instance", {"envName": "counter", **request}, headers=bearer(token))
    assert status == 200, body
    made: dict[str, Any] = body["data"]
    return made


@pytest.mark.long
def test_everything_works_over_one_port(platform: Served, tokens: Tokens) -> None:
    async def main() -> None:
        async with platform.environment("counter@1.2.0", tokens("ann"), environment_variables={"MINE": "1"}) as env:
            assert (await env.list_tools())[0]["name"] == "counter@1.2.0/increment"
            assert (await env.call_tool("increment")).data == 1
            assert await env.call_function("double", {"n": 4}) == 8
            assert await env.call_reward() == 1.0
            assert (await env.check_health())["success"]
            assert (await env.call_tool("variable", {"name": "MINE"})).data == "1"
            assert (await env.exec("echo there")).stdout == "there\n"
            text = "ü" * 8_000_000  # 16 MB each way
            assert (await env.call_tool("echo", {"text": text})).data == text
            await env.upload(b"x" * 20_000_000, "/tmp/file")
            assert len(await env.download("/tmp/file")) == 20_000_000
            info = await env.get_env_info()
        with pytest.raises(NotFound):
            async with ApiClient(platform.url, api_key=tokens("ann")) as api:
                await api.get_env_instance(info["instance_id"])

    run(main())


def test_both_generations_of_mcp_work_through_the_gateway(platform: Served, tokens: Tokens) -> None:
    made = make(platform, tokens("ann"))

    async def calls(mode: Any) -> list[Any]:
        import httpx2

        url = f"{platform.url}/instance/{made['id']}/mcp"
        async with (
            httpx2.AsyncClient(headers=bearer(tokens("ann")), timeout=30) as http,
            Client(streamable_http_client(url, http_client=http), mode=mode) as client,
        ):
            names = [tool.name for tool in (await client.list_tools()).tools]
            block: Any = (await client.call_tool("increment", {})).content[0]
            return [names[0], block.text]

    async def main() -> None:
        assert await calls("legacy") == ["increment", "1"]
        assert await calls("2026-07-28") == ["increment", "2"]

    run(main())
    fetch(platform.url, f"/env-instance/{made['id']}", method="DELETE", headers=bearer(tokens("ann")))


def test_an_older_client_needs_only_the_proxy_header(platform: Served, tokens: Tokens) -> None:
    made = make(platform, tokens("ann"))
    header = {"AEnvCore-MCPProxy-URL": f"http://{made['ip']}:8081", "AEnvCore-EnvInstance-ID": made["id"]}
    assert fetch(platform.url, "/functions/double", {"n": 2}, headers=header) == (200, {"success": True, "data": 4})
    for wrong in (
        f"http://{made['id']}:8081",
        f"http://{made['id']}.{'0' * 32}:8081",
        f"http://{made['ip']}:9999",
        f"https://{made['ip']}:8081",
        f"http://{made['ip']}:8081/elsewhere",
        f"http://user@{made['ip']}:8081",
        "http://127.0.0.1:8081",
        "http://169.254.169.254/latest/meta-data",
        "http://[::1",
        "unix:/run/docker.sock",
        "x",
    ):
        status, body = fetch(platform.url, "/functions/double", {"n": 2}, headers={"AEnvCore-MCPProxy-URL": wrong})
        assert status == 403, (wrong, body)
        assert body["error_code"] == "forbidden"
    assert (
        fetch(platform.url, "/functions/double", {"n": 2}, headers={**header, "AEnvCore-EnvInstance-ID": "x"})[0] == 403
    )
    other_user = {**bearer(tokens("bob")), "AEnvCore-MCPProxy-URL": f"http://{made['ip']}:8081"}
    assert fetch(platform.url, "/functions/double", {"n": 2}, headers=other_user)[0] == 403
    fetch(platform.url, f"/env-instance/{made['id']}", method="DELETE", headers=bearer(tokens("ann")))


def test_users_cannot_reach_resources_of_others(platform: Served, tokens: Tokens) -> None:
    made = make(platform, tokens("ann"))
    path = f"/env-instance/{made['id']}"
    assert fetch(platform.url, path)[0] == 401
    assert fetch(platform.url, path, headers=bearer("aenv_0_0"))[0] == 401
    assert fetch(platform.url, path, headers={"authorization": "Basic eDp5"})[0] == 401
    assert fetch(platform.url, "/metrics")[0] == 401
    for method, rest in (("GET", ""), ("DELETE", ""), ("GET", "/logs"), ("GET", "/events"), ("PUT", "/ttl")):
        status, body = fetch(platform.url, path + rest, method=method, headers=bearer(tokens("bob")))
        assert (status, body["error_code"]) == (404, "not_found"), rest
    assert fetch(platform.url, path + "/exec", {"command": "id"}, headers=bearer(tokens("bob")))[0] == 404
    assert fetch(platform.url, "/env-instance/*/list", headers=bearer(tokens("bob")))[1]["data"] == []
    own = {**bearer(tokens("bob")), "AEnvCore-EnvInstance-ID": made["id"]}
    assert fetch(platform.url, "/functions/double", {"n": 1}, headers=own)[0] == 403

    reader = platform.token("ann", "read-only")
    seen = fetch(platform.url, path, headers=bearer(reader))[1]["data"]
    assert seen["status"] == "Running"
    assert seen["ip"] is None
    for method, where, body in (("POST", "/env-instance", {"envName": "counter"}), ("DELETE", path, None)):
        assert fetch(platform.url, where, body, method=method, headers=bearer(reader))[0] == 403
    assert fetch(platform.url, path + "/exec", {"command": "id"}, headers=bearer(reader))[0] == 403
    called = {**bearer(reader), "AEnvCore-EnvInstance-ID": made["id"]}
    assert fetch(platform.url, "/functions/double", {"n": 1}, headers=called)[0] == 403
    assert fetch(platform.url, path, method="DELETE", headers=bearer(platform.first_token))[0] == 200


def test_a_shared_platform_refuses_paths_hubs_and_inner_networks(platform: Served, tokens: Tokens) -> None:
    for request, why in (
        ({"source": "/etc"}, "its own hub"),
        ({"hub": {"url": "http://169.254.169.254"}}, "its own hub"),
        ({"network": "host"}, "administrator"),
        ({"network": ["127.0.0.0/8"]}, "administrator"),
        ({"network": ["8.0.0.0/5"]}, "administrator"),
        ({"network": ["[::1]:6379"]}, "administrator"),
        ({"network": ["$MODEL"], "environment_variables": {"MODEL": "http://127.0.0.1:6379"}}, "administrator"),
    ):
        status, body = fetch(
            platform.url, "/env-instance", {"envName": "counter", **request}, headers=bearer(tokens("ann"))
        )
        assert status == 403, body
        assert why in body["message"]
    status, body = fetch(
        platform.url,
        "/env-instance",
        {"envName": "counter", "mount_points": [{"id": "x"}]},
        headers=bearer(tokens("ann")),
    )
    assert (status, body["success"]) == (400, False)
    assert "copy files into instances" in body["message"]


def test_an_impossible_create_fails_at_once_in_the_shape_of_older_clients(platform: Served, tokens: Tokens) -> None:
    status, body = fetch(platform.url, "/env-instance", {"envName": "no-such@1.0.0"}, headers=bearer(tokens("ann")))
    assert (status, body["success"], body["code"], body["data"]) == (404, False, 404, None)
    assert "no-such" in body["message"]
    for wrong in ({}, {"envName": 1}, b"{", {"envName": "counter", "ttl": "soon"}, {"envName": "../../etc"}):
        status, body = fetch(platform.url, "/env-instance", wrong, headers=bearer(tokens("ann")))
        assert (status, body["code"]) == (400, 400), wrong
    assert fetch(platform.url, "/env-instance/x/nonsense", headers=bearer(tokens("ann")))[0] == 404
    for query in ("status=Happy", "limit=0", "limit=x", "label=x"):
        assert fetch(platform.url, f"/env-instance/*/list?{query}", headers=bearer(tokens("ann")))[0] == 400


def test_fields_of_older_clients_exist_with_the_expected_types(platform: Served, tokens: Tokens) -> None:
    """Their models are strict: a string instead of a number, or an invalid time, fails the whole response."""
    made = make(platform, tokens("ann"), owner="me", labels={"a": "b"})
    assert {type(made[key]) for key in ("id", "status", "created_at", "updated_at", "ip", "ttl", "owner")} == {str}
    env = made["env"]
    assert (env["id"], env["name"], env["version"], env["status"]) == ("counter@1.2.0", "counter", "1.2.0", 0)
    for text in (env["created_at"], env["updated_at"], made["created_at"]):
        datetime.fromisoformat(text)
    assert {env["description"], env["code_url"]} == {""}
    headers = bearer(tokens("ann"))
    listed = fetch(platform.url, "/env-instance/counter@1.2.0/list", headers=headers)[1]
    assert [each["id"] for each in listed["data"]] == [made["id"]]
    assert [each["id"] for each in fetch(platform.url, "/env-instance/list", headers=headers)[1]["data"]["items"]]
    ended = fetch(platform.url, f"/env-instance/{made['id']}", method="DELETE", headers=headers)[1]
    assert (ended["success"], ended["code"], ended["data"]) == (True, 0, "Deleted successfully")
    refused = fetch(platform.url, f"/env-instance/{made['id']}", headers=headers)[1]
    assert (refused["success"], refused["code"], refused["data"]) == (False, 404, None)
    assert not {"errorCode", "errorMessage"} & refused.keys()


def test_a_dead_instance_is_reported_at_once(platform: Served, tokens: Tokens) -> None:
    async def main() -> None:
        env = platform.environment(token=tokens("ann"))
        async with env:
            with pytest.raises(Exception, match="may have run"):
                await env.call_tool("die")
            with pytest.raises(InstanceEnded, match="exit code 3") as caught:
                await env.call_tool("increment")
            assert caught.value.fault == "env"
            with pytest.raises(InstanceEnded):
                await env.call_function("double", {"n": 1})
            assert (await env.get_env_info())["status"] == "Terminated"

    run(main())


def test_disconnecting_cancels_the_call(platform: Served, tokens: Tokens) -> None:
    async def main() -> None:
        async with platform.environment(token=tokens("ann")) as env:
            await hang_up(env)

    run(main())


def test_a_time_to_live_is_renewed_and_expires(platform: Served, tokens: Tokens) -> None:
    async def main() -> None:
        env = platform.environment(token=tokens("ann"), ttl="2s")
        await env.initialize()
        await env.renew("1h")
        info = await env.get_env_info()
        async with ApiClient(platform.url, api_key=tokens("ann")) as api:
            found = await api.get_env_instance(info["instance_id"])
            assert found.ttl == "1h"
            assert found.expires_at is not None
            await env.renew("1s")
            while (await api.get_env_instance(info["instance_id"])).status == "Running":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            ended = await api.get_env_instance(info["instance_id"])
            assert (ended.status, ended.reason) == ("Terminated", "it has reached its time to live of 1s")
            types = [event.type for event in await api.get_instance_events(info["instance_id"])]
            assert types == ["created", "running", "renewed", "renewed", "terminated"]
        with pytest.raises(InstanceEnded, match="time to live"):
            await env.call_tool("increment")
        await env.release()

    run(main())


def test_an_instance_is_found_again_by_its_id(platform: Served, tokens: Tokens) -> None:
    async def main() -> None:
        async with platform.environment(token=tokens("ann"), keep_alive=True) as first:
            await first.call_tool("increment")
            name = (await first.get_env_info())["instance_id"]
        async with platform.environment(token=tokens("ann"), instance_id=name) as again:
            assert (await again.call_tool("increment")).data == 2
        with pytest.raises(EnvironmentError, match="runs counter, not other"):
            await platform.environment("other", tokens("ann"), instance_id=name).initialize()
        with pytest.raises(NotFound):
            await platform.environment(token=tokens("bob"), instance_id=name).initialize()
        async with ApiClient(platform.url, api_key=tokens("ann")) as api:
            assert await api.delete_env_instance(name)
            assert not await api.delete_env_instance(name)

    run(main())


@pytest.mark.long
def test_a_repeated_request_creates_one_instance_and_another_users_creates_another(
    platform: Served, tokens: Tokens
) -> None:
    one = make(platform, tokens("carl"), request_id="r1")
    assert make(platform, tokens("carl"), request_id="r1")["id"] == one["id"]
    other = make(platform, tokens("dora"), request_id="r1")
    assert other["id"] != one["id"]
    for user, name in (("carl", one["id"]), ("dora", other["id"])):
        assert fetch(platform.url, f"/env-instance/{name}", method="DELETE", headers=bearer(tokens(user)))[0] == 200


def test_lists_are_filtered_and_come_in_pages(platform: Served, tokens: Tokens) -> None:
    async def main() -> None:
        async with ApiClient(platform.url, api_key=tokens("eve")) as api:
            made = await api.create_env_instances(5, envName="counter", owner="team", labels={"experiment": "e1"})
            await asyncio.gather(*(api.wait_for_status(each.id) for each in made))
            other = await api.create_env_instance("counter@1.2.0", labels={"experiment": "e2"})
            assert len(await api.list_env_instances()) == 6
            assert len(await api.list_env_instances("counter@1.2.0")) == 6
            assert await api.list_env_instances("counter@9.0.0") == []
            found = await api.page_env_instances(labels={"experiment": "e2"})
            assert [each.id for each in found.items] == [other.id]
            assert len((await api.page_env_instances(owner="team", status="Running")).items) == 5
            assert (await api.page_env_instances(status="Creating")).items == []
            seen: list[str] = []
            after = None
            while True:
                page = await api.page_env_instances(limit=4, after=after)
                seen += [each.id for each in page.items]
                after = page.next
                if after is None:
                    break
            assert sorted(seen) == sorted([*(each.id for each in made), other.id])
            for name in seen:
                await api.delete_env_instance(name)

    run(main())


def test_logs_can_be_limited_and_followed(platform: Served, tokens: Tokens) -> None:
    async def main() -> None:
        async with platform.environment(token=tokens("ann")) as env:
            for word in ("one", "two", "three"):
                await env.call_tool("speak", {"text": word})
            name = (await env.get_env_info())["instance_id"]
            async with ApiClient(platform.url, api_key=tokens("ann")) as api:
                while (await api.get_instance_logs(name, 2)) != "two\nthree\n":  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                text = ""
                async for part in api.follow_instance_logs(name, 1):
                    text += part
                    if text == "three\n":
                        await env.call_tool("speak", {"text": "four"})
                    if text == "three\nfour\n":
                        break

    run(main())


def test_the_embedded_hub_accepts_the_same_tokens(platform: Served, tokens: Tokens) -> None:
    async def main() -> None:
        hub = HubClient(platform.url, tokens("ann"))
        nobody = HubClient(platform.url, "aenv_0_0")
        reader = HubClient(platform.url, platform.token("rita", "read-only"))
        try:
            await push(
                hub, "fresh", "1.0.0", "from aenv import register_tool\n@register_tool\ndef one() -> int: return 1\n"
            )
            with pytest.raises(NotFound):
                await reader.get("fresh")
            await hub.grant("fresh", "rita", "read")
            assert (await reader.get("fresh")).owner == "ann"
            with pytest.raises(Forbidden):
                await push(reader, "fresh", "2.0.0")
            with pytest.raises(Unauthorized):
                await nobody.get("fresh")
        finally:
            for client in (hub, reader, nobody):
                await client.close()
        async with platform.environment("fresh", tokens("ann")) as env:
            assert (await env.call_tool("one")).data == 1

    run(main())


def test_logs_and_records_contain_no_secrets(platform: Served, tokens: Tokens) -> None:
    made = make(platform, tokens("ann"), environment_variables={"KEY": "hunter2-secret"})
    header = {"authorization": f"Bearer {tokens('ann')}", "AEnvCore-EnvInstance-ID": made["id"]}
    fetch(platform.url, "/tools/echo", {"text": "hunter3-secret"}, headers=header)
    fetch(platform.url, f"/env-instance/{made['id']}", method="DELETE", headers=bearer(tokens("ann")))
    files = [path for path in platform.data.rglob("*") if path.is_file() and "cache" not in path.parts]
    assert any(path.name == "audit.jsonl" for path in files)
    for path in files:
        content = path.read_bytes()
        for secret in (b"hunter2-secret", b"hunter3-secret", tokens("ann").encode(), made["ip"].encode()):
            assert secret not in content, path
    lines = [json.loads(line) for line in (platform.data / "platform" / "audit.jsonl").read_text().splitlines()]
    ours = [line["action"] for line in lines if line.get("instance") == made["id"]]
    assert ours == ["delete"]
    assert {"create", "delete"} <= {line["action"] for line in lines if line["user"] == "ann"}


def test_metrics_count_operations(platform: Served, tokens: Tokens) -> None:
    import urllib.request

    made = make(platform, tokens("ann"), labels={"experiment": 'a"b'})
    request = urllib.request.Request(platform.url + "/metrics", headers=bearer(platform.first_token))
    with urllib.request.urlopen(request, timeout=10) as answer:
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    running = {"envName": "counter@1.2.0", "status": "Running", "experiment": 'a"b', "owner": "", "app": ""}
    assert [sample.value for sample in samples if sample.labels == running] == [1]
    series = [(sample.name, sample.labels) for sample in samples]
    created = {"operation": "create", "env_name": "counter", "status": "success"}
    assert ("aenv_api_instance_operations_total", created) in series
    assert "aenv_api_create_duration_ms_count" in text
    for phase in ("source", "record", "engine"):
        assert ("aenv_api_create_phase_duration_ms_count", {"phase": phase}) in series
    assert float(text.partition("\naenv_api_server_resident_bytes ")[2].partition("\n")[0]) > 1_000_000
    by_instance = {name for name, labels in series if made["id"] in labels.values()}
    assert by_instance == {"aenv_api_instance_uptime_seconds"}
    path, own = f"/env-instance/{made['id']}", bearer(tokens("ann"))
    assert fetch(platform.url, path, headers=own)[1]["data"]["usage"]["calls"] == 0
    fetch(platform.url, "/functions/double", {"n": 1}, headers={**own, "AEnvCore-EnvInstance-ID": made["id"]})
    assert fetch(platform.url, path, headers=own)[1]["data"]["usage"]["calls"] == 1
    fetch(platform.url, path, method="DELETE", headers=own)
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert 'aenv_api_instances_ended_total{how="deleted"}' in answer.read().decode()


@pytest.mark.long
def test_stopping_lets_calls_finish_and_reports_why_instances_ended(data: Path) -> None:
    with serving(data, auth=False, one_port=False) as platform:
        assert not platform.auth
        assert platform.url != platform.data_url
        made = make(platform, "")
        header = {"AEnvCore-EnvInstance-ID": made["id"]}
        assert fetch(platform.data_url, "/functions/double", {"n": 2}, headers=header)[1]["data"] == 4
        assert fetch(platform.data_url, "/health")[1]["status"] == "healthy"
        assert fetch(platform.data_url, "/mcp")[0] == 404
        rebound = {"host": "evil.example.com"}
        assert fetch(platform.url, "/env-instance/*/list", headers=rebound)[0] == 403
        assert fetch(platform.data_url, "/functions/double", {"n": 2}, headers={**header, **rebound})[0] == 403
        platform.stop()
    with serving(data, auth=False) as again:
        found = fetch(again.url, f"/env-instance/{made['id']}")[1]["data"]
        assert (found["status"], found["reason"]) == ("Terminated", "the platform was stopped")


@pytest.mark.long
def test_a_path_prefix_is_accepted(data: Path) -> None:
    with serving(data, "--prefix", "/deep/er") as platform:
        assert platform.url.endswith("/deep/er")

        async def main() -> None:
            async with platform.environment(token=platform.first_token) as env:
                assert (await env.call_tool("increment")).data == 1

        run(main())


@pytest.mark.long
def test_an_administrators_token_can_be_given(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, other = f"aenv_{'a' * 12}_{'s' * 40}", f"aenv_{'a' * 12}_{'x' * 40}"
    monkeypatch.setenv("AENV_SERVE_ADMIN_TOKEN", given)
    for _ in range(2):
        with serving(data) as platform:
            assert fetch(platform.url, "/tokens", headers=bearer(given))[0] == 200
            assert "aenv_" not in platform.log.read_text()
            assert b"s" * 40 not in (data / "platform" / "platform.db").read_bytes()
    monkeypatch.setenv("AENV_SERVE_ADMIN_TOKEN", other)
    with serving(data) as platform:  # a token of the same id is not replaced
        assert fetch(platform.url, "/tokens", headers=bearer(other))[0] == 401
        assert fetch(platform.url, "/tokens", headers=bearer(given))[0] == 200


def test_a_given_token_that_is_none_is_refused(data: Path) -> None:
    command = [sys.executable, "-m", "aenv.cli", "serve", "--port", "0", "--one-port", "--auth"]
    variables = environ(data) | {"AENV_SERVE_ADMIN_TOKEN": "secret"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert "aenv_ID_SECRET" in done.stderr


def test_a_first_token_is_shown_only_where_no_administrator_has_one(data: Path) -> None:
    def create(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "aenv.cli", "serve", "token", "create", "--role", "admin", *options]
        return subprocess.run(command, env=environ(data), capture_output=True, text=True, timeout=60, check=False)

    refused = create("--user", "two\nlines")
    assert refused.returncode == 1
    assert "user: invalid name" in refused.stderr
    assert create("--user", "root").returncode == 0
    with serving(data) as platform:
        assert "The first token" not in platform.log.read_text()


def test_a_platform_open_to_the_network_says_who_may_call_it(data: Path) -> None:
    command = [sys.executable, "-m", "aenv.cli", "serve", "--host", "0.0.0.0", "--no-auth"]
    command += ["--one-port", "--port", "0", "--adopt-within", "0"]
    with subprocess.Popen(
        command, env=environ(data), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as platform:
        try:
            assert platform.stdout is not None
            told = next(line for line in platform.stdout if line.startswith("For:"))
        finally:
            platform.terminate()
        assert told.split(":")[1].strip() == "everyone who can reach 0.0.0.0, without a token"
        assert "no token is needed (--no-auth)" in platform.communicate(timeout=60)[1]


@pytest.mark.long
def test_check_explains_what_is_wrong(data: Path) -> None:
    def check(*options: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "aenv.cli", "serve", "--check", "--port", "0", "--data-port", "0", *options],
            env=environ(data), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    code, said = check()
    assert (code, "WRONG" in said) == (0, False), said
    code, said = check(
        "--store", "redis://127.0.0.1:1", "--host", "0.0.0.0", "--no-auth", "--hub", "http://127.0.0.1:1",
        "--blobs", "ftp://elsewhere",
    )  # fmt: skip
    assert code == 3
    assert [line.split(":")[0] for line in said.splitlines() if line.startswith("WRONG")] == [
        "WRONG  store", "WRONG  blobs", "WRONG  hub",
    ]  # fmt: skip
    assert "access: everyone who can reach 0.0.0.0, without a token" in said
    assert "WRONG  address: cannot listen on 192.0.2.1:0" in (said := check("--host", "192.0.2.1")[1])
    assert "Choose an address of this machine with --host" in said
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = check("--port", str(taken.getsockname()[1]))[1]
    assert "Stop what listens there, or choose another port with --port." in said
    code, said = check("--store", "/proc/no/such.db")
    assert code == 3
    assert "WRONG  store: " in said
    assert "engine: native" in said  # the checks after it were made too
    (data / "serve.toml").write_text('prot = 1\nlimits = {memory = "lots"}\n')
    code, said = check("--config", str(data / "serve.toml"))
    assert code == 3
    assert "prot: unknown setting; did you mean port?" in said
    assert "limits.memory: 'lots'" in said
    assert "prefix: invalid value; write it like /aenv" in check("--prefix", "no slash")[1]


def test_a_hub_that_is_gone_does_not_stop_known_environments(data: Path, tmp_path: Path) -> None:
    from tests.hub.parts import serving as hub_serving

    with hub_serving(f"sqlite:{data}/hub/hub.db", data / "hub" / "blobs", tmp_path) as hub:
        with serving(data, "--hub", hub.url) as platform:
            token = platform.first_token
            assert make(platform, token)["status"] == "Running"
            assert fetch(platform.url, "/api/v1/environments", headers=bearer(token))[0] == 404  # it embeds no hub
            hub.process.kill()
            hub.process.wait()
            while "the hub does not answer" not in platform.log.read_text():  # until the cached name has expired
                made = make(platform, token)
                assert made["status"] == "Running"
                fetch(platform.url, f"/env-instance/{made['id']}", method="DELETE", headers=bearer(token))
            status, body = fetch(platform.url, "/env-instance", {"envName": "other"}, headers=bearer(token))
            assert status >= 500, body
        hub.stop = lambda: None  # type: ignore[method-assign]
