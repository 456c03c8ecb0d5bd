"""A server that is killed, or restarted, and the one that comes after it."""

from __future__ import annotations

import http.server
import os
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from aenv.platform.instances.ledger import INSTANCE, LedgerEntry
from aenv.platform.operations.settings import ServeSettings
from aenv.platform.operations.state_directory import StateDirectory
from aenv.storage.base import Delete
from aenv.storage.open_url import open_store
from tests.conftest import fetch, run
from tests.isolation.host import eventually
from tests.platform.machine import Machine
from tests.platform.parts import Served, serving
from tests.storage.valkey import Valkey, started


def lasting(data: Path, *options: str, auth: bool = True) -> AbstractContextManager[Served]:
    """A server whose instances wait for the next one, for longer than a busy machine takes to start that."""
    return serving(data, "--adopt-within", "120", *options, auth=auth)


@pytest.fixture
def machine(data: Path) -> Iterator[Machine]:
    """Nothing of any server is left on it in the end."""
    found = Machine(data)
    yield found
    found.is_clean()


def ask(server: Served, path: str = "", body: Any = None, token: str = "", **options: Any) -> Any:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    status, answer = fetch(server.url, f"/env-instance{path}", body, headers=headers, **options)
    assert status == 200, answer
    return answer["data"]


def make(server: Served, token: str = "", **wish: Any) -> str:
    return str(ask(server, body={"envName": "counter", **wish}, token=token)["id"])


def call(server: Served, name: str, tool: str, token: str = "", **arguments: Any) -> Any:
    headers = {"AEnvCore-EnvInstance-ID": name, "authorization": f"Bearer {token}"}
    status, answer = fetch(server.url, f"/tools/{tool}", arguments, headers=headers)
    assert status == 200, answer
    return answer["data"]["content"][0]["text"] if answer["data"]["content"] else None


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGUSR2])
def test_instances_go_on_with_the_next_server(data: Path, machine: Machine, how: signal.Signals) -> None:
    with lasting(data) as first:
        token = first.token("ann", "user", "--instances", "4")
        wishes = [{"labels": {"n": str(n)}, "ttl": "10m", "request_id": f"r{n}"} for n in range(4)]
        names = [make(first, token, **wish) for wish in wishes]  # the last ones are forks of what is loaded
        before = {name: ask(first, f"/{name}", token=token) for name in names}
        for name in names:
            assert call(first, name, "increment", token) == "1"
            call(first, name, "write", token, path="/tmp/mine", text=name)
        call(first, names[0], "speak", token, text="before")
        first.kill(how)
        assert machine.sandboxes()
    with lasting(data) as second:
        for name in names:
            assert call(second, name, "increment", token) == "2"
            assert call(second, name, "read", token, path="/tmp/mine") == name
            found = ask(second, f"/{name}", token=token)
            assert found["status"] == "Running"
            assert {key: found[key] for key in ("ip", "labels", "expires_at", "created_at", "ttl")} == {
                key: before[name][key] for key in ("ip", "labels", "expires_at", "created_at", "ttl")
            }
        assert {each["id"] for each in ask(second, "/*/list", token=token)} == set(names)
        call(second, names[0], "speak", token, text="after")
        assert ask(second, f"/{names[0]}/logs", token=token) == "before\nafter\n"
        assert ask(second, f"/{names[0]}/exec", {"command": ["cat", "/tmp/mine"]}, token)["stdout"] == names[0]
        assert "adopted" in {each["type"] for each in ask(second, f"/{names[0]}/events", token=token)}
        if os.geteuid() == 0:
            assert ask(second, f"/{names[1]}", token=token)["usage"]["memory_bytes"] > 0
        headers = {"authorization": f"Bearer {token}"}
        assert make(second, token, **wishes[3]) == names[3]  # asked for again, for want of an answer
        assert fetch(second.url, "/env-instance", {"envName": "counter"}, headers=headers)[0] == 403  # four of four
        ask(second, f"/{names[0]}", token=token, method="DELETE")
        other = make(second, token)
        assert call(second, other, "increment", token) == "1"
        second.kill()  # once more: what was adopted, what is new, and nothing that was deleted
    with lasting(data) as third:
        assert {each["id"] for each in ask(third, "/*/list", token=token)} == {*names[1:], other}
        assert [call(third, name, "increment", token) for name in (*names[1:], other)] == ["3", "3", "3", "2"]
        assert len(machine.sandboxes()) == 4


def test_without_a_next_server_all_ends_by_itself(data: Path, machine: Machine) -> None:
    with lasting(data, "--adopt-within", "1", auth=False) as first:
        names = [make(first) for _ in range(3)]
        assert len(machine.sandboxes()) >= 3
        first.kill()
        machine.is_clean()
    with lasting(data, auth=False) as second:
        for name in names:
            found = ask(second, f"/{name}")
            assert found["status"] in ("Terminated", "Failed")  # the last one may not have been written down as running
            assert found["reason"].startswith("the server")
        assert ask(second, "/*/list") == []
        assert call(second, make(second), "increment") == "1"


def test_instances_end_with_a_server_that_is_to_have_no_next(data: Path, machine: Machine) -> None:
    with lasting(data, "--adopt-within", "0", auth=False) as first:
        make(first)
        assert not machine.keepers()
        first.kill()
        machine.is_clean()


def test_neither_an_instance_without_a_record_nor_a_record_without_an_instance(data: Path, machine: Machine) -> None:
    store_url = f"sqlite:{data}/platform/platform.db"

    async def strike_out(name: str) -> None:
        store = open_store(store_url)
        await store.commit(Delete(INSTANCE, name))
        await store.close()

    async def statuses() -> dict[str, str]:
        store = open_store(store_url)
        entries = [LedgerEntry.model_validate_json(put.value) async for put in store.dump() if put.space == INSTANCE]
        await store.close()
        return {entry.instance.id: str(entry.instance.status) for entry in entries}

    with lasting(data, "--pool", "0", auth=False) as first:
        unwritten, dying, expiring, staying = (make(first, ttl=ttl) for ttl in ("1h", "1h", "2s", "1h"))
        first.kill()
        run(strike_out(unwritten))
        assert len(machine.sandboxes()) == 4
    with lasting(data, "--pool", "0", auth=False) as second:
        fetch(second.url, "/tools/die", {}, headers={"AEnvCore-EnvInstance-ID": dying})
        eventually(lambda: ask(second, f"/{expiring}")["status"] == "Running", "it outlives its time")
        assert "time to live" in ask(second, f"/{expiring}")["reason"]
        assert fetch(second.url, f"/env-instance/{unwritten}")[0] == 404
        eventually(lambda: len(machine.sandboxes()) != 1, "others than the one that is written down")
        assert [each["id"] for each in ask(second, "/*/list")] == [staying]
        assert call(second, staying, "increment") == "1"
        expected = {dying: "Terminated", expiring: "Terminated", staying: "Running"}
        eventually(lambda: run(statuses()) != expected, "it is not written down")


def test_what_ended_while_no_server_was_there_is_said_to_have(data: Path, machine: Machine) -> None:
    with lasting(data, "--pool", "0", auth=False) as first:
        one, other = make(first), make(first)
        first.kill()
    for process in machine.zygotes():
        if process.depth == 2:
            process.kill()
    eventually(machine.sandboxes, "instances outlive their zygote")
    with lasting(data, auth=False) as second:
        assert {ask(second, f"/{name}")["reason"] for name in (one, other)} == {"its zygote was killed"}
        assert ask(second, "/*/list") == []
        assert call(second, make(second), "increment") == "1"


def test_the_door_to_a_network_stays_open(data: Path, machine: Machine) -> None:
    class Hello(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, *_: Any) -> None:
            return

    with http.server.HTTPServer(("127.0.0.2", 0), Hello) as web:
        url = f"http://127.0.0.2:{web.server_address[1]}/"
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        try:
            with lasting(data, auth=False) as first:
                name = make(first, network=["127.0.0.0/8"])
                assert call(first, name, "get", url=url) == "hello"
                first.kill()
            with lasting(data, auth=False) as second:
                assert call(second, name, "get", url=url) == "hello"
        finally:
            web.shutdown()
            thread.join()


def test_a_server_that_cannot_listen_does_not_end_the_instances(data: Path, machine: Machine) -> None:
    with lasting(data, auth=False) as first:
        name = make(first)
        first.kill()
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(AssertionError, match="did not start"),
        lasting(data, "--port", str(taken.getsockname()[1]), auth=False),
    ):
        pass
    with lasting(data, auth=False) as third:
        assert call(third, name, "increment") == "1"


def test_a_keeper_that_is_killed_takes_its_instances_along_and_another_takes_its_place(
    data: Path, machine: Machine
) -> None:
    with lasting(data, auth=False) as first:
        name = make(first)
        (keeper,) = machine.keepers()
        keeper.kill()
        eventually(lambda: ask(first, f"/{name}")["status"] == "Running", "it outlives its keeper")
        other = make(first)
        assert call(first, other, "increment") == "1"
        first.kill()
    with lasting(data, auth=False) as second:
        assert call(second, other, "increment") == "2"
        assert ask(second, f"/{name}")["status"] == "Terminated"


def test_everybody_killed_at_once_leaves_nothing(data: Path, machine: Machine) -> None:
    with lasting(data, auth=False) as first:
        make(first)
        victims = [*machine.keepers(), *machine.servers()]
        assert len(victims) == 2
        for process in victims:
            process.kill()
        first.process.wait()
        machine.is_clean()


def test_servers_on_one_redis_go_on_with_their_own(data: Path, machine: Machine, tmp_path: Path) -> None:
    with started(tmp_path) as valkey:
        both = [_beside(data, name, valkey) for name in ("a", "b")]
        names = []
        for server in both:
            with server as running:
                names.append(made := make(running))
                eventually(lambda name=made: _status(valkey, name) != "Running", "it is not written down as running")
                running.kill()
        with _beside(data, "b", valkey) as again:
            assert call(again, names[1], "increment") == "1"
            assert {each["id"] for each in ask(again, "/*/list")} == set(names)
            assert _status(valkey, names[0]) == "Running"  # its keeper waits for its own server
            with _beside(data, "a", valkey) as other:
                assert call(other, names[0], "increment") == "1"
                assert {each["id"] for each in ask(other, "/*/list")} == set(names)
            assert _status(valkey, names[0]) == "Terminated"


def _beside(data: Path, name: str, valkey: Valkey) -> AbstractContextManager[Served]:
    """A server with a data folder of its own, on a store that others have, too."""
    own = data / name
    if not own.exists():
        own.mkdir()
        shutil.copytree(data / "hub", own / "hub")
    return lasting(own, "--store", valkey.url(), auth=False)


def _status(valkey: Valkey, name: str) -> str:
    async def look() -> str:
        store = open_store(valkey.url())
        record = await store.get(INSTANCE, name)
        await store.close()
        assert record is not None
        return str(LedgerEntry.model_validate_json(record.value).instance.status)

    return str(run(look()))


def test_servers_side_by_side_have_a_home_each(tmp_path: Path) -> None:
    async def main() -> None:
        store = ServeSettings(store=f"sqlite:{tmp_path}/x.db").store_url
        one = await StateDirectory.enter(tmp_path, store, 0)
        two = await StateDirectory.enter(tmp_path, store, 0)
        assert one.id != two.id
        await one.close()
        again = await StateDirectory.enter(tmp_path, store, 0)
        assert again.id == one.id
        for home in (two, again):
            await home.close()
        assert not any(home.runtime.exists() for home in (one, two, again))

    run(main())
