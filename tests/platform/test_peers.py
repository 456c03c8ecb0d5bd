"""Several servers on one store: each answers for the instances of all."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from aenv.client.platform_client import ApiClient
from aenv.errors import InstanceEnded, NotFound
from aenv.platform.gateway.peers import reachable_url
from aenv.platform.instances.ledger import SERVER, ServerEntry
from aenv.sdk.environment import Environment
from aenv.storage.base import Put
from aenv.storage.open_url import open_store
from tests.conftest import fetch, run
from tests.platform.parts import Served, hang_up, serving, waiting_call
from tests.storage.valkey import Valkey, started
from tests.waiting import wait_while

numbers = itertools.count()


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with started(tmp_path_factory.mktemp("valkey")) as server:
        yield server


class Two(NamedTuple):
    """Two servers, and a token for both."""

    one: Served
    other: Served
    admin: str
    store: str

    @property
    def header(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.admin}"}


@contextmanager
def both(data: Path, valkey: Valkey) -> Iterator[Two]:
    """Start both so that instances do not outlive them."""
    url = valkey.url(prefix=f"peers{next(numbers)}:")
    options = ("--store", url, "--adopt-within", "0")
    with serving(data, *options) as one, serving(data, *options, one_port=False) as other:
        yield Two(one, other, one.first_token, url)


@pytest.fixture(scope="module")
def two(published: Path, valkey: Valkey) -> Iterator[Two]:
    """Both servers, for tests that leave them running."""
    with both(published, valkey) as servers:
        yield servers


def make(served: Served, header: dict[str, str], **request: Any) -> dict[str, Any]:
    status, body = fetch(served.url, "/env-instance", {"envName": "counter", **request}, headers=header)
    assert status == 200, body
    made: dict[str, Any] = body["data"]
    return made


def killed(served: Served) -> None:
    served.process.send_signal(signal.SIGKILL)
    served.process.wait()
    served.stop = lambda: None  # type: ignore[method-assign]


@pytest.mark.long
def test_every_server_answers_for_every_instance(two: Two) -> None:
    token = two.one.token("ann", "user", "--store", two.store)

    async def main() -> None:
        async with two.one.environment(token=token, keep_alive=True) as env:
            await env.call_tool("increment")
            name = (await env.get_env_info())["instance_id"]
        async with Environment("counter", aenv_url=two.other.url, api_key=token, instance_id=name) as env:
            assert (await env.call_tool("increment")).data == 2
            text = "ü" * 8_000_000
            assert (await env.call_tool("echo", {"text": text})).data == text
            await env.upload(b"x" * 10_000_000, "/tmp/file")
            assert len(await env.download("/tmp/file")) == 10_000_000
            assert (await env.exec("echo there")).stdout == "there\n"
            await env.renew("3h")
            await env.call_tool("speak", {"text": "heard"})
        async with ApiClient(two.other.url, api_key=token) as api:
            found = await api.get_env_instance(name)
            assert (found.status, found.ttl) == ("Running", "3h")
            assert found.ip is not None
            assert [event.type for event in await api.get_instance_events(name)] == ["created", "running", "renewed"]
            async for part in api.follow_instance_logs(name):
                assert part == "heard\n"
                break
            assert await api.delete_env_instance(name)
            assert not await api.delete_env_instance(name)
            with pytest.raises(NotFound):
                await api.get_env_instance(name)

    run(main())


def test_older_clients_reach_instances_through_any_server_and_other_users_do_not(two: Two) -> None:
    made = make(two.one, two.header)
    proxied = {"AEnvCore-MCPProxy-URL": f"http://{made['ip']}:8081"}
    assert fetch(two.other.data_url, "/functions/double", {"n": 2}, headers=proxied)[1]["data"] == 4
    wrong = {"AEnvCore-MCPProxy-URL": f"http://{made['id']}.{'0' * 32}:8081"}
    assert fetch(two.other.data_url, "/functions/double", {"n": 2}, headers=wrong)[0] == 403
    bob = {"authorization": f"Bearer {two.one.token('bob', 'user', '--store', two.store)}"}
    path = f"/env-instance/{made['id']}"
    for header, refused, called in (({}, 401, 401), (bob, 404, 403)):
        assert fetch(two.other.url, path, headers=header)[0] == refused
        assert fetch(two.other.url, path, method="DELETE", headers=header)[0] == refused
        assert fetch(two.other.url, f"/instance{path[13:]}/functions/double", {"n": 2}, headers=header)[0] == called
    assert fetch(two.other.url, "/env-instance/*/list", headers=bob)[1]["data"] == []
    # Claiming to be a server gains nothing: the request is only not forwarded.
    assert fetch(two.other.url, path, headers={**two.header, "aenv-peer": "x"})[1]["data"]["ip"] is None
    assert fetch(two.one.url, path, headers={**bob, "aenv-peer": "x"})[0] == 404


@pytest.mark.attack("tenants")
def test_other_users_do_not_learn_that_an_instance_of_another_server_has_ended(two: Two) -> None:
    made = make(two.one, two.header, ttl="1s")
    path = f"/env-instance/{made['id']}"

    def lives() -> bool:
        return bool(fetch(two.one.url, path, headers=two.header)[1]["data"]["status"] != "Terminated")

    wait_while(lives, "it lives on")  # the other server was not asked before, so it has nothing cached
    right, wrong = ({"AEnvCore-MCPProxy-URL": f"http://{ip}:8081"} for ip in (made["ip"], f"{made['id']}.{'0' * 32}"))
    for where in (two.other.data_url, two.one.data_url):
        status, said = fetch(where, "/functions/double", {"n": 2}, headers=wrong)
        assert (status, "time to live" in said["message"]) == (403, False)
        assert fetch(where, "/functions/double", {"n": 2}, headers=right)[0] == 410


def test_a_list_merges_the_instances_of_all_servers_in_order_and_in_pages(two: Two) -> None:
    token = two.one.token("lia", "user", "--store", two.store)
    header = {"authorization": f"Bearer {token}"}
    made = [make(served, header, labels={"n": str(n % 3)})["id"] for n, served in enumerate([two.one, two.other] * 3)]

    async def main() -> None:
        async with ApiClient(two.other.url, api_key=token) as api:
            assert sorted(each.id for each in await api.list_env_instances()) == sorted(made)
            assert all(each.ip for each in await api.list_env_instances())
            assert len((await api.page_env_instances(labels={"n": "1"})).items) == 2
            seen: list[str] = []
            after = None
            while True:
                page = await api.page_env_instances(limit=2, after=after)
                seen += [each.id for each in page.items]
                after = page.next
                if after is None:
                    break
            assert sorted(seen) == sorted(made)

    run(main())


def test_a_repeated_request_creates_one_instance_whichever_server_it_reaches(two: Two) -> None:
    first = make(two.one, two.header, request_id="r1")
    assert make(two.other, two.header, request_id="r1")["id"] == first["id"]
    assert make(two.one, two.header, request_id="r1")["id"] == first["id"]
    assert make(two.other, two.header, request_id="r2")["id"] != first["id"]


def test_instances_of_a_killed_server_are_reported_as_ended_at_once(data: Path, valkey: Valkey) -> None:
    with both(data, valkey) as two:
        made = [make(two.one, two.header, request_id=f"r{n}")["id"] for n in range(3)]

        async def main() -> None:
            env = Environment("counter", aenv_url=two.other.url, api_key=two.admin, instance_id=made[0])
            async with env:
                call = await waiting_call(env)
                killed(two.one)
                with pytest.raises(Exception, match="may have"):
                    await call
                with pytest.raises(InstanceEnded) as caught:
                    await env.call_tool("increment")
                assert caught.value.fault == "infra"

        run(main())
        status, body = fetch(two.other.url, f"/env-instance/{made[1]}/exec", {"command": "true"}, headers=two.header)
        assert (status, body["error_code"], body["fault"]) == (410, "instance_ended", "infra"), body
        status, body = fetch(two.other.url, f"/env-instance/{made[2]}", headers=two.header)
        assert (status, body["data"]["status"]) == (200, "Terminated")
        assert body["data"]["reason"] == "the server that it ran on has ended"
        assert fetch(two.other.url, "/env-instance/*/list", headers=two.header)[1]["data"] == []
        assert make(two.other, two.header, request_id="r0")["id"] != made[0]


def test_disconnecting_cancels_the_call_on_the_other_server(two: Two) -> None:
    made = make(two.one, two.header)

    async def main() -> None:
        env = Environment("counter", aenv_url=two.other.url, api_key=two.admin, instance_id=made["id"])
        async with env:
            await hang_up(env)

    run(main())


def test_instances_of_a_remote_server_that_does_not_answer_are_listed_from_the_store(two: Two) -> None:
    made = make(two.one, two.header, labels={"a": "b"})

    async def move() -> None:
        """Pretend that it is on another machine, at an address where nothing listens."""
        store = open_store(two.store)
        page = [put async for put in store.dump() if put.space == SERVER]
        for put in page:
            entry = ServerEntry.model_validate_json(put.value)
            if entry.pid == two.one.process.pid:
                moved = entry.model_copy(update={"host": "elsewhere", "url": "http://127.0.0.1:1"})
                await store.commit(Put(SERVER, entry.id, moved.model_dump_json().encode(), expires=time.time() + 30))
        await store.close()

    two.one.process.send_signal(signal.SIGSTOP)  # or its next heartbeat restores its address
    try:
        run(move())
        status, body = fetch(two.other.url, f"/env-instance/{made['id']}/events", headers=two.header)
        assert (status, body["error_code"], body["details"]["sent"]) == (502, "unreachable", False)
        listed = fetch(two.other.url, "/env-instance/*/list?label=a=b", headers=two.header)[1]["data"]
        assert [(each["id"], each["ip"]) for each in listed] == [(made["id"], None)]
        assert fetch(two.other.url, "/env-instance/*/list?label=a=c", headers=two.header)[1]["data"] == []
    finally:
        two.one.process.send_signal(signal.SIGCONT)


def test_a_stopped_server_ends_its_instances_and_reports_why(data: Path, valkey: Valkey) -> None:
    with both(data, valkey) as two:
        made = make(two.one, two.header)
        two.one.stop()
        status, body = fetch(two.other.url, f"/env-instance/{made['id']}", headers=two.header)
        assert (status, body["data"]["reason"]) == (200, "the platform was stopped")
        assert fetch(two.other.url, "/env-instance/*/list", headers=two.header)[1]["data"] == []


def test_a_server_on_all_addresses_advertises_a_reachable_one() -> None:
    assert reachable_url("http://0.0.0.0:8080/p", "redis://127.0.0.1:6379") == "http://127.0.0.1:8080/p"
    assert reachable_url("http://10.1.2.3:8080", "redis://127.0.0.1") == "http://10.1.2.3:8080"


def test_a_quota_counts_on_all_servers_together(two: Two) -> None:
    token = two.one.token("greedy", "user", "--store", two.store, "--instances", "2")
    header = {"authorization": f"Bearer {token}"}
    first = make(two.one, header)
    make(two.other, header)
    for server in (two.one, two.other):
        status, body = fetch(server.url, "/env-instance", {"envName": "counter"}, headers=header)
        assert status == 403, body
        assert "uses 2 of 2 instances" in body["message"]
    status, body = fetch(two.one.url, f"/env-instance/{first['id']}", method="DELETE", headers=header)
    assert status == 200, body

    def refused() -> object:  # until the end of the instance is in the store
        status, body = fetch(two.other.url, "/env-instance", {"envName": "counter"}, headers=header)
        return None if status == 200 else body

    wait_while(refused, "what was deleted there still counts here")
