"""Handover of instances from a server that is killed or restarted to the next one."""

from __future__ import annotations

import http.server
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from aenv.engines.fd_holders import FdHolderClient
from aenv.engines.native.handover_records import ZYGOTE
from aenv.engines.sandbox_log import Log
from aenv.platform.instances.ledger import INSTANCE, LedgerEntry
from aenv.platform.operations.host_audit import HostAudit
from aenv.platform.operations.settings import ServeSettings
from aenv.platform.operations.state_directory import StateDirectory
from aenv.storage.base import Delete
from aenv.storage.open_url import open_store
from tests.conftest import fetch, run
from tests.platform.machine import Machine
from tests.platform.parts import Served, serving
from tests.storage.valkey import Valkey, started
from tests.waiting import wait_while


def serving_with_handover(data: Path, *options: str, auth: bool = True) -> AbstractContextManager[Served]:
    """Serve with a handover window that is longer than a busy machine takes to start the next server."""
    return serving(data, "--adopt-within", "120", *options, auth=auth)


@pytest.fixture
def machine(data: Path) -> Iterator[Machine]:
    """Check at the end that no server has left anything on the machine."""
    found = Machine(data)
    yield found
    found.is_clean()


def call_api(server: Served, path: str = "", body: Any = None, token: str = "", **options: Any) -> Any:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    status, answer = fetch(server.url, f"/env-instance{path}", body, headers=headers, **options)
    assert status == 200, answer
    return answer["data"]


def create(server: Served, token: str = "", **request: Any) -> str:
    return str(call_api(server, body={"envName": "counter", **request}, token=token)["id"])


def call(server: Served, name: str, tool: str, token: str = "", **arguments: Any) -> Any:
    headers = {"AEnvCore-EnvInstance-ID": name, "authorization": f"Bearer {token}"}
    status, answer = fetch(server.url, f"/tools/{tool}", arguments, headers=headers)
    assert status == 200, answer
    return answer["data"]["content"][0]["text"] if answer["data"]["content"] else None


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGUSR2, marks=pytest.mark.long)])
def test_instances_survive_into_the_next_server(data: Path, machine: Machine, how: signal.Signals) -> None:
    with serving_with_handover(data) as first:
        token = first.token("ann", "user", "--instances", "4")
        requests = [{"labels": {"n": str(n)}, "ttl": "10m", "request_id": f"r{n}"} for n in range(4)]
        names = [create(first, token, **request) for request in requests]  # the last ones are forked
        before = {name: call_api(first, f"/{name}", token=token) for name in names}
        for name in names:
            assert call(first, name, "increment", token) == "1"
            call(first, name, "write", token, path="/tmp/mine", text=name)
        call(first, names[0], "speak", token, text="before")
        first.kill(how)
        assert machine.sandboxes()
    with serving_with_handover(data) as second:
        for name in names:
            assert call(second, name, "increment", token) == "2"
            assert call(second, name, "read", token, path="/tmp/mine") == name
            found = call_api(second, f"/{name}", token=token)
            assert found["status"] == "Running"
            assert {key: found[key] for key in ("ip", "labels", "expires_at", "created_at", "ttl")} == {
                key: before[name][key] for key in ("ip", "labels", "expires_at", "created_at", "ttl")
            }
        assert {each["id"] for each in call_api(second, "/*/list", token=token)} == set(names)
        call(second, names[0], "speak", token, text="after")
        assert call_api(second, f"/{names[0]}/logs", token=token) == "before\nafter\n"
        assert call_api(second, f"/{names[0]}/exec", {"command": ["cat", "/tmp/mine"]}, token)["stdout"] == names[0]
        assert "adopted" in {each["type"] for each in call_api(second, f"/{names[0]}/events", token=token)}
        if os.geteuid() == 0:
            assert call_api(second, f"/{names[1]}", token=token)["usage"]["memory_bytes"] > 0
        headers = {"authorization": f"Bearer {token}"}
        assert create(second, token, **requests[3]) == names[3]  # a repeated request, as after a lost answer
        # Its quota of four is used up.
        assert fetch(second.url, "/env-instance", {"envName": "counter"}, headers=headers)[0] == 403
        call_api(second, f"/{names[0]}", token=token, method="DELETE")
        other = create(second, token)
        assert call(second, other, "increment", token) == "1"
        second.kill()  # again: adopted and new instances survive, deleted ones do not
    with serving_with_handover(data) as third:
        assert {each["id"] for each in call_api(third, "/*/list", token=token)} == {*names[1:], other}
        assert [call(third, name, "increment", token) for name in (*names[1:], other)] == ["3", "3", "3", "2"]
        assert len(machine.sandboxes()) == 4


@pytest.mark.long
def test_an_instance_takes_two_descriptors_of_the_holder_and_one_of_0_3_0_is_adopted(
    data: Path, machine: Machine
) -> None:
    """Servers up to 0.3.0 held one more, under another name: a file with the record."""

    async def hold_as_0_3_0_did(runtime: Path) -> None:
        holder = await FdHolderClient.connect(runtime, 120)
        assert holder is not None
        held = {name: fds for name, fds in holder.held.items() if not name.startswith(ZYGOTE)}
        assert [len(fds) for fds in held.values()] == [2]  # its log, and the pipe that it writes to
        for name, fds in held.items():
            with tempfile.TemporaryFile() as record:
                record.write(Log(fds[0]).read_record())
                record.flush()
                holder.hold(f"sandbox/{name.partition('/')[2]}", [record.fileno(), *fds], wait_for_next=True)
            holder.drop(name)
        for fds in holder.held.values():
            for fd in fds:
                os.close(fd)
        holder.leave()

    with serving_with_handover(data, auth=False) as first:
        name = create(first)
        call(first, name, "speak", text="before")
        first.kill()
    run(hold_as_0_3_0_did(next(data.glob("**/runtime")).resolve()))
    with serving_with_handover(data, auth=False) as second:
        call(second, name, "speak", text="after")
        second.kill()
    with serving_with_handover(data, auth=False) as third:  # to which it is handed over as by this version
        assert call_api(third, f"/{name}/logs") == "before\nafter\n"
        call_api(third, f"/{name}", method="DELETE")


@pytest.mark.long
def test_processes_of_an_adopting_server_are_no_leftovers(data: Path, machine: Machine) -> None:
    with serving_with_handover(data, auth=False) as first:
        create(first)
        first.kill()
    with serving_with_handover(data, auth=False):
        found = HostAudit(data / "local", temporary=data, young=0.0).all()
        processes = [Path("/proc", each.what.split()[0], "cmdline") for each in found if each.kind == "process"]
        assert not [path for path in processes if path.exists() and str(data) in path.read_text()]
        assert not [each.what for each in found if each.kind == "folder" and str(data) in each.what]


@pytest.mark.long
def test_instances_end_if_no_next_server_starts(data: Path, machine: Machine) -> None:
    with serving_with_handover(data, "--adopt-within", "1", auth=False) as first:
        names = [create(first) for _ in range(3)]
        assert len(machine.sandboxes()) >= 3
        first.kill()
        machine.is_clean()
    with serving_with_handover(data, auth=False) as second:
        for name in names:
            found = call_api(second, f"/{name}")
            assert found["status"] in ("Terminated", "Failed")  # the last one may not have been stored as running
            assert found["reason"].startswith("the server")
        assert call_api(second, "/*/list") == []
        assert call(second, create(second), "increment") == "1"


def test_instances_end_with_a_server_that_hands_nothing_over(data: Path, machine: Machine) -> None:
    with serving_with_handover(data, "--adopt-within", "0", auth=False) as first:
        create(first)
        assert not machine.fd_holders()
        first.kill()
        machine.is_clean()


@pytest.mark.long
def test_instances_and_ledger_entries_without_each_other_are_ended(data: Path, machine: Machine) -> None:
    store_url = f"sqlite:{data}/platform/platform.db"

    async def delete_entry(name: str) -> None:
        store = open_store(store_url)
        await store.commit(Delete(INSTANCE, name))
        await store.close()

    async def statuses() -> dict[str, str]:
        store = open_store(store_url)
        entries = [LedgerEntry.model_validate_json(put.value) async for put in store.dump() if put.space == INSTANCE]
        await store.close()
        return {entry.instance.id: str(entry.instance.status) for entry in entries}

    with serving_with_handover(data, "--pool", "0", auth=False) as first:
        unrecorded, dying, expiring, staying = (create(first, ttl=ttl) for ttl in ("1h", "1h", "2s", "1h"))
        first.kill()
        run(delete_entry(unrecorded))
        assert len(machine.sandboxes()) == 4
    with serving_with_handover(data, "--pool", "0", auth=False) as second:
        fetch(second.url, "/tools/die", {}, headers={"AEnvCore-EnvInstance-ID": dying})
        wait_while(lambda: call_api(second, f"/{expiring}")["status"] == "Running", "it outlives its time to live")
        assert "time to live" in call_api(second, f"/{expiring}")["reason"]
        assert fetch(second.url, f"/env-instance/{unrecorded}")[0] == 404
        wait_while(lambda: len(machine.sandboxes()) != 1, "others than the one in the ledger")
        assert [each["id"] for each in call_api(second, "/*/list")] == [staying]
        assert call(second, staying, "increment") == "1"
        expected = {dying: "Terminated", expiring: "Terminated", staying: "Running"}
        wait_while(lambda: run(statuses()) != expected, "the ledger does not say so")


@pytest.mark.long
def test_instances_that_ended_between_two_servers_are_reported_as_ended(data: Path, machine: Machine) -> None:
    with serving_with_handover(data, "--pool", "0", auth=False) as first:
        one, other = create(first), create(first)
        first.kill()
    for process in machine.zygotes():
        if process.depth == 2:
            process.kill()
    wait_while(machine.sandboxes, "instances outlive their zygote")
    with serving_with_handover(data, auth=False) as second:
        assert {call_api(second, f"/{name}")["reason"] for name in (one, other)} == {"its zygote was killed"}
        assert call_api(second, "/*/list") == []
        assert call(second, create(second), "increment") == "1"


@pytest.mark.long
def test_the_egress_proxy_survives_into_the_next_server(data: Path, machine: Machine) -> None:
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
            with serving_with_handover(data, auth=False) as first:
                name = create(first, network=["127.0.0.0/8"])
                assert call(first, name, "get", url=url) == "hello"
                first.kill()
            with serving_with_handover(data, auth=False) as second:
                assert call(second, name, "get", url=url) == "hello"
        finally:
            web.shutdown()
            thread.join()


@pytest.mark.long
def test_a_server_that_cannot_listen_does_not_end_instances(data: Path, machine: Machine) -> None:
    with serving_with_handover(data, auth=False) as first:
        name = create(first)
        first.kill()
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(AssertionError, match="did not start"),
        serving_with_handover(data, "--port", str(taken.getsockname()[1]), auth=False),
    ):
        pass
    with serving_with_handover(data, auth=False) as third:
        assert call(third, name, "increment") == "1"


@pytest.mark.long
def test_a_killed_fd_holder_ends_its_instances_and_is_replaced(data: Path, machine: Machine) -> None:
    with serving_with_handover(data, auth=False) as first:
        name = create(first)
        (fd_holder,) = machine.fd_holders()
        fd_holder.kill()
        wait_while(lambda: call_api(first, f"/{name}")["status"] == "Running", "it outlives its fd holder")
        other = create(first)
        assert call(first, other, "increment") == "1"
        first.kill()
    with serving_with_handover(data, auth=False) as second:
        assert call(second, other, "increment") == "2"
        assert call_api(second, f"/{name}")["status"] == "Terminated"


def test_killing_server_and_fd_holder_at_once_leaves_nothing_behind(data: Path, machine: Machine) -> None:
    with serving_with_handover(data, auth=False) as first:
        create(first)
        victims = [*machine.fd_holders(), *machine.servers()]
        assert len(victims) == 2
        for process in victims:
            process.kill()
        first.process.wait()
        machine.is_clean()


@pytest.mark.long
def test_servers_on_one_redis_adopt_their_own_instances(data: Path, machine: Machine, tmp_path: Path) -> None:
    with started(tmp_path) as valkey:
        both = [_serving_from(data, name, valkey) for name in ("a", "b")]
        names = []
        for server in both:
            with server as running:
                names.append(made := create(running))
                wait_while(lambda name=made: _status(valkey, name) != "Running", "it is not stored as running")
                running.kill()
        with _serving_from(data, "b", valkey) as again:
            assert call(again, names[1], "increment") == "1"
            assert {each["id"] for each in call_api(again, "/*/list")} == set(names)
            assert _status(valkey, names[0]) == "Running"  # its fd holder waits for its own server
            with _serving_from(data, "a", valkey) as other:
                assert call(other, names[0], "increment") == "1"
                assert {each["id"] for each in call_api(other, "/*/list")} == set(names)
            assert _status(valkey, names[0]) == "Terminated"


def _serving_from(data: Path, name: str, valkey: Valkey) -> AbstractContextManager[Served]:
    """Serve from a data folder of its own, on a shared store."""
    own = data / name
    if not own.exists():
        own.mkdir()
        shutil.copytree(data / "hub", own / "hub")
    return serving_with_handover(own, "--store", valkey.url(), auth=False)


def _status(valkey: Valkey, name: str) -> str:
    async def read() -> str:
        store = open_store(valkey.url())
        record = await store.get(INSTANCE, name)
        await store.close()
        assert record is not None
        return str(LedgerEntry.model_validate_json(record.value).instance.status)

    return str(run(read()))


def test_concurrent_servers_have_separate_state_directories(tmp_path: Path) -> None:
    async def main() -> None:
        store = ServeSettings(store=f"sqlite:{tmp_path}/x.db").store_url
        one = await StateDirectory.enter(tmp_path, store, 0)
        two = await StateDirectory.enter(tmp_path, store, 0)
        assert one.id != two.id
        await one.close()
        again = await StateDirectory.enter(tmp_path, store, 0)
        assert again.id == one.id
        for state in (two, again):
            await state.close()
        assert not any(state.runtime.exists() for state in (one, two, again))

    run(main())
