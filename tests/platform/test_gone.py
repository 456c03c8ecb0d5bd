"""Calls to instances that were deleted, or lost in a restart, on a platform that is served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aenv.errors import InstanceEnded
from tests.conftest import fetch, run
from tests.platform.parts import Served, serving


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def make(server: Served, token: str) -> dict[str, Any]:
    status, body = fetch(server.url, "/env-instance", {"envName": "counter"}, headers=bearer(token))
    assert status == 200, body
    made: dict[str, Any] = body["data"]
    return made


def answers(server: Served, made: dict[str, Any], headers: dict[str, str]) -> dict[str, tuple[int, str, str]]:
    """What each way of calling an instance says: status, code and fault."""
    name, own = made["id"], {"AEnvCore-EnvInstance-ID": made["id"]}
    proxy = {"AEnvCore-MCPProxy-URL": f"http://{made['ip']}:8081"}
    ways: dict[str, tuple[str, dict[str, str]]] = {
        "by header": ("/functions/double", {**headers, **own}),
        "by path": (f"/instance/{name}/functions/double", headers),
        "by proxy header": ("/functions/double", {**headers, **proxy}),
        "by secret alone": ("/functions/double", proxy),
        "exec": (f"/env-instance/{name}/exec", headers),
        "presign": (f"/env-instance/{name}/presign-url", headers),
    }
    said = {}
    for way, (path, sent) in ways.items():
        status, body = fetch(server.url, path, {"n": 2, "port": 80}, headers=sent)
        said[way] = (status, body.get("error_code", ""), body.get("fault", ""))
    return said


ENDED = (410, "instance_ended", "infra")


def test_a_call_to_a_deleted_instance_says_that_it_ended(data: Path) -> None:
    with serving(data) as server:
        token, other = server.token("ann"), server.token("bob")
        made = make(server, token)
        assert fetch(server.url, f"/env-instance/{made['id']}", method="DELETE", headers=bearer(token))[0] == 200
        assert set(answers(server, made, bearer(token)).values()) == {ENDED}
        strangers = answers(server, {**made, "ip": f"{made['id']}.{'0' * 32}"}, bearer(other))
        assert not [way for way, said in strangers.items() if said[0] not in (403, 404)], strangers
        never = answers(server, {"id": "counter-00000000", "ip": "counter-00000000.1"}, bearer(token))
        assert not [way for way, said in never.items() if said[0] not in (403, 404)], never


def test_a_call_to_an_instance_that_was_lost_in_a_restart_says_that_it_ended(data: Path) -> None:
    with serving(data) as first:
        token = first.token("ann")
        stopped = make(first, token)
    with serving(data) as second:
        assert set(answers(second, stopped, bearer(token)).values()) == {ENDED}
        killed = make(second, token)

        async def lose() -> None:
            env = second.environment(token=token)
            await env.initialize()
            second.kill()
            with serving(data, "--port", second.url.rpartition(":")[2]) as third:
                said = answers(third, killed, bearer(token))
                assert said.pop("by secret alone")[0] == 403  # its secret was lost with the server
                assert set(said.values()) == {ENDED}
                with pytest.raises(InstanceEnded, match="server") as caught:
                    await env.call_function("double", {"n": 2})
                assert caught.value.fault == "infra"
                await env.release()

        run(lose())
