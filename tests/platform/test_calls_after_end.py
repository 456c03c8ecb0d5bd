"""Calls to instances that were deleted, or lost in a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aenv.errors import InstanceEnded
from tests.conftest import fetch, run
from tests.platform.parts import Served, serving


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def create(server: Served, token: str) -> dict[str, Any]:
    status, body = fetch(server.url, "/env-instance", {"envName": "counter"}, headers=bearer(token))
    assert status == 200, body
    instance: dict[str, Any] = body["data"]
    return instance


def answers(server: Served, instance: dict[str, Any], headers: dict[str, str]) -> dict[str, tuple[int, str, str]]:
    """Return status, code and fault of each way to call an instance."""
    name, own = instance["id"], {"AEnvCore-EnvInstance-ID": instance["id"]}
    proxy = {"AEnvCore-MCPProxy-URL": f"http://{instance['ip']}:8081"}
    ways: dict[str, tuple[str, dict[str, str]]] = {
        "by header": ("/functions/double", {**headers, **own}),
        "by path": (f"/instance/{name}/functions/double", headers),
        "by proxy header": ("/functions/double", {**headers, **proxy}),
        "by secret alone": ("/functions/double", proxy),
        "exec": (f"/env-instance/{name}/exec", headers),
        "presign": (f"/env-instance/{name}/presign-url", headers),
    }
    found = {}
    for way, (path, sent) in ways.items():
        status, body = fetch(server.url, path, {"n": 2, "port": 80}, headers=sent)
        found[way] = (status, body.get("error_code", ""), body.get("fault", ""))
    return found


ENDED = (410, "instance_ended", "infra")


def test_a_call_to_a_deleted_instance_says_that_it_ended(data: Path) -> None:
    with serving(data) as server:
        token, other = server.token("ann"), server.token("bob")
        instance = create(server, token)
        assert fetch(server.url, f"/env-instance/{instance['id']}", method="DELETE", headers=bearer(token))[0] == 200
        assert set(answers(server, instance, bearer(token)).values()) == {ENDED}
        refused = answers(server, {**instance, "ip": f"{instance['id']}.{'0' * 32}"}, bearer(other))
        assert not [way for way, found in refused.items() if found[0] not in (403, 404)], refused
        unknown = answers(server, {"id": "counter-00000000", "ip": "counter-00000000.1"}, bearer(token))
        assert not [way for way, found in unknown.items() if found[0] not in (403, 404)], unknown


def test_a_call_to_an_instance_lost_in_a_restart_says_that_it_ended(data: Path) -> None:
    with serving(data) as first:
        token = first.token("ann")
        stopped = create(first, token)
    with serving(data) as second:
        assert set(answers(second, stopped, bearer(token)).values()) == {ENDED}
        killed = create(second, token)

        async def lose() -> None:
            env = second.environment(token=token)
            await env.initialize()
            second.kill()
            with serving(data, "--port", second.url.rpartition(":")[2]) as third:
                found = answers(third, killed, bearer(token))
                assert found.pop("by secret alone")[0] == 403  # its secret was lost with the server
                assert set(found.values()) == {ENDED}
                with pytest.raises(InstanceEnded, match="server") as caught:
                    await env.call_function("double", {"n": 2})
                assert caught.value.fault == "infra"
                await env.release()

        run(lose())
