"""A hub on Valkey, with tokens, for people on other machines; and what is left when parts of it are killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from aenv.schema.bundle import BLOB_LIMIT
from tests.storage.valkey import Valkey, servers

from .conftest import COMMAND, Person

SECONDS = 60.0
MEGABYTES = 200


class HubServer:
    """``aenv hub serve`` on Valkey, which can be killed and comes back at the same address."""

    def __init__(self, folder: Path, operator: Person) -> None:
        self.folder = folder
        self.operator = operator
        self.valkey = Valkey(Path(servers()[0]), folder)
        self.blobs = folder / "blobs"
        self.log = folder / "hub.log"
        with closing(socket.create_server(("127.0.0.1", 0))) as probe:
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[str] | None = None

    @property
    def place(self) -> tuple[str, ...]:
        return ("--store", self.valkey.url(), "--blobs", str(self.blobs))

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*COMMAND, "hub", "serve", "--auth", "--port", str(self.port), *self.place],
                env=self.operator.env, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        assert "ready" in self._process.stdout.readline(), self.log.read_text()

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.communicate(timeout=SECONDS)

    def token(self, *options: str) -> str:
        made = self.operator.json("hub", "token", "create", *options, *self.place, "-o", "json")
        return str(made["token"])

    def stored(self) -> int:
        """Bytes of blobs that have arrived."""
        total = 0
        for path in self.blobs.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # a part that has just become whole
                total += path.stat().st_size if path.is_file() else 0
        return total


@pytest.fixture
def hub(tmp_path, person) -> Iterator[HubServer]:
    folder = tmp_path / "hub"
    folder.mkdir()
    made = HubServer(folder, person())
    made.valkey.start()
    try:
        made.start()
        yield made
    finally:
        made.stop()
        made.valkey.stop()


@pytest.mark.long
def test_one_user_pushes_and_another_pulls_and_runs(hub, person, sandboxes):
    author, user = person(), person()
    token = hub.token("--scope", "push", "--namespace", "hello")
    author.aenv("config", "set", "hub_backend", hub.url)
    author.aenv("config", "set", "api_key", token)
    author.aenv("init", "hello")
    author.aenv("build", "--no-image", cwd=author.home / "hello")
    pushed = author.json("push", "-o", "json", cwd=author.home / "hello")
    assert pushed["outcome"] == "created"
    author.aenv("release", "hello@1.0.0")

    user.variables |= {"HUB_BACKEND": hub.url, "AENV_API_KEY": hub.token("--scope", "read", "--user", "reader")}
    assert "hello" not in [each["name"] for each in user.json("list", "--format", "json")]
    assert "no environment hello" in user.aenv("pull", "hello@1.0.0", "copy", code=1).stderr
    author.aenv("hub", "grant", "hello", "--user", "reader")
    assert "hello" in [each["name"] for each in user.json("list", "--format", "json")]
    assert user.json("get", "hello")["digest"] == pushed["digest"]
    assert [each["name"] for each in user.json("search", "custom_echo", "-f", "json")] == ["hello"]
    user.aenv("pull", "hello@1.0.0", "copy")
    user.aenv("test", cwd=user.home / "copy")
    script = (
        "import asyncio\nfrom aenv import Environment\n"
        "async def main():\n"
        "    async with Environment({!r}) as env:\n"
        "        print((await env.call_tool('my_custom_echo_env', {{'content': 'far'}})).content[0]['text'])\n"
        "asyncio.run(main())"
    )
    for name in ("./copy", "hello@1.0.0"):
        assert user.python(script.format(name)) == '{"result":"far"}\n'

    for tokens in (token, user.variables["AENV_API_KEY"]):
        assert tokens not in hub.log.read_text()
        assert tokens not in next(user.runtime.glob("*/platform.log")).read_text()


def test_a_token_that_is_not_good_for_it_is_told_what_would_be(hub, person):
    me = person(AENV_HUB_URL=hub.url)
    me.aenv("init", "hello")
    project = me.home / "hello"
    me.variables["AENV_API_KEY"] = "wrong"
    wrong = me.aenv("push", "--no-load", cwd=project, code=1)
    assert "Hint:" in wrong.stderr
    me.variables["AENV_API_KEY"] = hub.token("--scope", "read")
    assert "Hint:" in me.aenv("push", "--no-load", cwd=project, code=1).stderr
    me.variables["AENV_API_KEY"] = hub.token("--scope", "push", "--namespace", "other")
    assert "Hint:" in me.aenv("push", "--no-load", cwd=project, code=1).stderr
    assert not re.search(r"wrong", hub.log.read_text())
    me.variables["AENV_API_KEY"] = hub.token("--scope", "push", "--namespace", "hello")
    me.aenv("push", "--no-load", cwd=project)


def big_project(me: Person) -> Path:
    me.aenv("init", "hello")
    draw = random.Random(7)
    with (me.home / "hello/weights.bin").open("wb") as file:
        for _ in range(MEGABYTES):
            file.write(draw.randbytes(1_000_000))
    return me.home / "hello"


@contextmanager
def pushing(me: Person, project: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, "push", "--no-load"],
        cwd=project,
        env=me.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def wait_for_some(hub: HubServer, process: subprocess.Popen[str], share: int = 4) -> None:
    """Until a part of it has arrived, and not all."""
    while hub.stored() < MEGABYTES * 1_000_000 // share:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    assert hub.stored() < MEGABYTES * 1_000_000


def holds_the_whole(me: Person, project: Path) -> None:
    me.aenv("pull", "hello@1.0.0", "copy")
    assert (me.home / "copy/weights.bin").read_bytes() == (project / "weights.bin").read_bytes()


@pytest.mark.long
def test_a_push_whose_both_ends_are_killed_leaves_the_old_state_and_goes_on_later(hub, person):
    me = person(AENV_HUB_URL=hub.url, AENV_API_KEY=hub.token("--scope", "push"))
    me.aenv("init", "other")
    me.aenv("push", "--no-load", "-w", "other")
    project = big_project(me)
    with pushing(me, project) as process:
        wait_for_some(hub, process)
        hub.kill()
        hub.valkey.kill()
        process.kill()
        process.communicate()
    hub.valkey.start()
    hub.start()
    assert [each["name"] for each in me.json("list", "-f", "json") if not each["builtin"]] == ["other"]
    me.aenv("get", "hello", code=1)
    me.aenv("pull", "other", "other-copy")
    left = me.json("push", "--dry-run", "-o", "json", cwd=project)
    assert left["outcome"] == "created"
    assert 0 < left["bytes"] <= MEGABYTES * 1_000_000 * 3 // 4 + 4 * BLOB_LIMIT
    assert me.json("push", "--no-load", "-o", "json", cwd=project)["outcome"] == "created"
    holds_the_whole(me, project)


@pytest.mark.long
@pytest.mark.parametrize("what", ["hub", "store"])
def test_a_push_goes_on_by_itself_when_a_part_is_killed_and_comes_back(hub, person, what):
    me = person(AENV_HUB_URL=hub.url, AENV_API_KEY=hub.token("--scope", "push"))
    project = big_project(me)
    with pushing(me, project) as process:
        wait_for_some(hub, process)
        part = hub if what == "hub" else hub.valkey
        part.kill()
        part.start()
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    assert "published" in out
    holds_the_whole(me, project)


def test_two_who_push_the_same_version_at_once_do_not_mix(hub, person):
    tokens = [hub.token("--scope", "push", "--user", "ann") for _ in range(2)]
    people = [person(AENV_HUB_URL=hub.url, AENV_API_KEY=token) for token in tokens]
    processes = []
    for number, each in enumerate(people):
        each.aenv("init", "hello")
        (each.home / "hello/who.txt").write_text(f"person {number}")
    for each in people:
        processes.append(
            subprocess.Popen(
                [*COMMAND, "push", "--no-load"], cwd=each.home / "hello", env=each.env,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
    ends = [(process.communicate(timeout=SECONDS)[1], process.returncode) for process in processes]
    assert sorted(code for _, code in ends) == [0, 1], ends
    winner = [code for _, code in ends].index(0)
    assert "changed who.txt" in ends[1 - winner][0]
    people[0].aenv("pull", "hello", "copy")
    assert (people[0].home / "copy/who.txt").read_text() == f"person {winner}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_person_with_another_user_id_pulls_and_runs_too(hub, person, tmp_path):
    """Nothing of it needs root, or the same user as the hub's."""
    author = person(AENV_HUB_URL=hub.url, AENV_API_KEY=hub.token("--scope", "push"))
    author.aenv("init", "hello")
    author.aenv("push", "--no-load", "--public", "-w", "hello")
    nobody = 65534
    home = Path("/tmp") / f"aenv-t-nobody-{os.getpid()}"
    home.mkdir(mode=0o700)
    os.chown(home, nobody, nobody)
    env = {**author.env, "HOME": str(home), "AENV_API_KEY": hub.token("--scope", "read")}

    def run(python: str, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, *args], env={**env, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}, cwd=home, user=nobody,
            group=nobody, extra_groups=[], capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip

    def works(python: str) -> bool:
        try:
            return run(python, "-c", "import aenv.cli.main, pydantic_core").returncode == 0
        except OSError:
            return False

    try:
        python = next(filter(works, (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}")), None)
        if python is None:
            pytest.skip("the interpreter and its packages are for root alone here")
        for command in (["list"], ["pull", "hello", str(home / "copy")]):
            done = run(python, "-m", "aenv.cli", *command)
            assert done.returncode == 0, done.stderr
        assert (home / "copy/src/custom_env.py").stat().st_uid == nobody
        assert json.loads((home / "copy/config.json").read_text())["name"] == "hello"
    finally:
        subprocess.run(["rm", "-rf", str(home)], check=True)
