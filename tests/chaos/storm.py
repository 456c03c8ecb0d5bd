"""A platform under load, with faults injected."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aenv.platform.instances.instance_record import ENDED
from aenv.platform.instances.ledger import INSTANCE, LedgerEntry
from aenv.storage.open_url import open_store
from tests.conftest import fetch, run
from tests.isolation.host import Process
from tests.platform.machine import Machine
from tests.platform.parts import environ
from tests.storage.valkey import Valkey
from tests.waiting import wait_while

HERE = Path(__file__).parent
START_SECONDS = WORK_SECONDS = 180.0
"""Long, for busy machines."""
DAY = 86400.0

ENV = '''
from pathlib import Path

from aenv import register_tool

memory = []
disk = Path("/tmp/tally")


@register_tool
def add(key: str) -> int:
    """Remember it, twice over."""
    memory.append(key)
    with disk.open("a") as file:
        file.write(key + "\\n")
    return len(memory)


@register_tool
def all() -> dict:
    return {"memory": memory, "disk": disk.read_text().split() if disk.exists() else []}
'''


class Storm:
    """One server, some clients, and the faults injected. ``disk``: the data folder is one that can be filled."""

    def __init__(self, data: Path, scratch: Path, dice: random.Random, *, valkey: Valkey | None, disk: bool) -> None:
        self.machine = Machine(data)
        self._data = data
        self._scratch = scratch
        self._dice = dice
        self._valkey = valkey
        self._store = valkey.url() if valkey else f"sqlite:{data}/platform.db"
        self._clock = scratch / "clock"
        self._clients: list[subprocess.Popen[bytes]] = []
        self._began = 0
        self._server: subprocess.Popen[str] | None = None
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as probe:
            self._port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.actions = {
            "client": self.kill_client, "server": self.kill_server, "restart": self.restart, "zygote": self.kill_zygote,
            "instance": self.kill_instance, "fd_holder": self.kill_fd_holder, "clock": self.set_clock,
            **({"redis": self.kill_redis} if valkey else {}), **({"disk": self.fill_disk} if disk else {}),
        }  # fmt: skip
        self.set_clock(0.0)

    # --- parts

    def start(self) -> None:
        """Start a server, retrying until one runs."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            with (self._scratch / "server.log").open("ab") as log:
                self._server = subprocess.Popen(
                    [
                        sys.executable, str(HERE / "server.py"), str(self._clock), "--port", str(self._port),
                        "--one-port", "--no-auth", "--pool", "0", "--store", self._store, "--output", "json",
                        "--adopt-within", "120",
                    ],
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, env=environ(self._data),
                )  # fmt: skip
            assert self._server.stdout is not None
            with self._server.stdout:
                if any(line == "}\n" for line in self._server.stdout):
                    return
            self._server.wait()
            assert time.monotonic() < deadline, self.log()

    def log(self) -> str:
        return (self._scratch / "server.log").read_text(errors="replace")

    def begin_client(self) -> None:
        """Start a program with some instances."""
        self._began += 1
        with (self._scratch / f"client-{self._began}").open("wb") as said:
            self._clients.append(
                subprocess.Popen(
                    [sys.executable, str(HERE / "client.py"), self.url, "3"], stdin=subprocess.PIPE, stdout=said
                )
            )

    def end_clients(self) -> Counter[str]:
        """Let clients finish and return what they did."""
        did: Counter[str] = Counter()
        for client in self._clients:
            assert client.stdin is not None
            client.stdin.close()
        for client in self._clients:
            assert client.wait(WORK_SECONDS) == 0
        for file in self._scratch.glob("client-*"):
            lines = [line for line in file.read_text().splitlines() if line != "done"]
            wrong = [line for line in lines if line.startswith("wrong")]
            assert not wrong, "\n".join(wrong)
            if lines:  # of a client that was not killed
                did += Counter(json.loads(lines[-1]))
        self._clients = []
        return did

    def close(self) -> None:
        """Stop everything, whatever has happened."""
        for process in (*self._clients, *([self._server] if self._server else [])):
            process.kill()
            process.wait()
        for victim in self.machine.processes():
            victim.kill()
        for client in self._clients:
            assert client.stdin is not None
            client.stdin.close()

    def stop(self) -> None:
        """Stop the server as its administrator would: nothing is left."""
        assert self._server is not None
        self._server.terminate()
        assert self._server.wait(START_SECONDS) == 0, self.log()
        self.machine.is_clean()

    # --- faults

    def strike(self, what: str) -> None:
        """Inject a fault at a random moment after clients have made progress."""
        before = self._calls()
        wait_while(lambda: self._calls() == before, f"{self.log()}\nclients make no progress", WORK_SECONDS)
        self.nap()
        self.actions[what]()
        assert self._server is not None
        assert self._server.poll() is None, self.log()

    def _calls(self) -> int:
        return sum(file.stat().st_size for file in self._scratch.glob("client-*"))

    def nap(self, most: float = 0.5) -> None:
        time.sleep(self._dice.uniform(0, most))

    def kill_client(self) -> None:
        victim = self._clients.pop(self._dice.randrange(len(self._clients)))
        victim.kill()
        victim.wait()
        assert victim.stdin is not None
        victim.stdin.close()
        self.begin_client()

    def kill_server(self, number: int = signal.SIGKILL, *, start: bool = True) -> None:
        assert self._server is not None
        self._server.send_signal(number)
        self._server.wait()
        if start:
            self.nap()
            self.start()

    def restart(self) -> None:
        self.kill_server(signal.SIGUSR2)

    def _kill_one(self, victims: list[Process]) -> None:
        if victims:
            self._dice.choice(victims).kill()

    def kill_zygote(self) -> None:
        self._kill_one(self.machine.zygotes())

    def kill_instance(self) -> None:
        self._kill_one([p for p in self.machine.processes() if p.depth > 2])

    def kill_fd_holder(self) -> None:
        self._kill_one(self.machine.fd_holders())

    def kill_redis(self) -> None:
        assert self._valkey is not None
        self._valkey.kill()
        killed = self._more_trouble()
        self._valkey.start()
        if killed:
            self.start()

    def fill_disk(self) -> None:
        with self.full_disk():
            killed = self._more_trouble()
        if killed:
            self.start()

    def _more_trouble(self) -> bool:
        """Perhaps kill the server while another fault lasts."""
        self.nap(1.5)
        killed = self._dice.random() < 0.3
        if killed:
            self.kill_server(start=False)
        return killed

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """Fill the disk to the last byte."""
        filler = self._data / "filler"
        with filler.open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))
            with pytest.raises(OSError, match="No space left"):
                file.write(bytes(1 << 12))
        yield
        filler.unlink()

    def set_clock(self, seconds: float | None = None) -> None:
        wrong = self._dice.uniform(-5 * DAY, 5 * DAY) if seconds is None else seconds
        fresh = self._clock.with_suffix(".new")
        fresh.write_bytes(struct.pack("=d", wrong))
        fresh.rename(self._clock)

    # --- invariants

    def agree(self) -> None:
        """Check that the platform's list, its records and the running processes agree once no request is open."""

        def differences() -> dict[str, Any]:
            said, written, there = self.said(), self.written(), self.machine.sandboxes()
            agreed = said == written and len(said) == len(there)
            return {} if agreed else {"said": said, "written": written, "there": there}

        wait_while(differences, f"{self.log()}\nthe platform, its store and the machine differ", WORK_SECONDS)

    def make(self, **request: Any) -> tuple[int, Any]:
        """Create an instance; return the platform's response."""
        return fetch(self.url, "/env-instance", {"envName": "tally", **request})

    def add(self, name: str, key: str) -> Any:
        """Call an instance; return its counter."""
        status, answer = fetch(self.url, "/tools/add", {"key": key}, headers={"AEnvCore-EnvInstance-ID": name})
        return answer["data"]["content"][0]["text"] if status == 200 else (status, answer)

    def said(self) -> set[str]:
        status, body = fetch(self.url, "/env-instance/*/list")
        assert status == 200, body
        return {each["id"] for each in body["data"]}

    def written(self) -> set[str]:
        async def look() -> set[str]:
            store = open_store(self._store)
            try:
                found = [
                    LedgerEntry.model_validate_json(put.value) async for put in store.dump() if put.space == INSTANCE
                ]
            finally:
                await store.close()
            return {entry.instance.id for entry in found if entry.instance.status not in ENDED}

        return set(run(look()))

    def delete_all(self) -> None:
        """Delete what killed clients have left."""
        for name in self.said():
            assert fetch(self.url, f"/env-instance/{name}", method="DELETE")[0] in (200, 404, 410)
        wait_while(lambda: self.said() or self.machine.sandboxes(), "instances that were deleted", WORK_SECONDS)
