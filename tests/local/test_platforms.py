"""One local platform per interpreter and version: each with its own packages, none stopped by another."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import site
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aenv.client import local_platforms
from aenv.client.local_platforms import LocalPaths, PlatformInfo, all_of_user, ensure_running, health, is_alive
from aenv.client.platform_identity import Identity
from aenv.errors import ConfigError, EnvironmentError
from tests.conftest import left_in, stop_all

WHOSE = """
import whose
from aenv import register_tool

@register_tool
def owner() -> str:
    return whose.OWNER
"""
TRAINER = """
import sys, time
from aenv import SyncEnvironment
from aenv.errors import AEnvError

held = []
for line in sys.stdin:
    word, *rest = line.split()
    try:
        if word == "create":
            env = SyncEnvironment(rest[0], startup_timeout=float(rest[1]) if rest[1:] else 300.0)
            env.initialize()
            held.append(env)
            print("created", flush=True)
        elif word == "owner":
            print(held[0].call_tool("owner").data, flush=True)
        elif word == "release":
            held.pop().release()
            print("released", flush=True)
    except AEnvError as error:
        print(type(error).__name__, error.message.replace(chr(10), " "), flush=True)
"""


@dataclass
class Venv:
    """A virtual environment with aenv and a package of its own."""

    folder: Path
    runtime: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def packages(self) -> Path:
        return next((self.folder / "lib").glob("python*")) / "site-packages"

    def environ(self, **variables: str) -> dict[str, str]:
        return {**os.environ, "AENV_RUNTIME_DIR": str(self.runtime), **variables}

    @contextlib.contextmanager
    def trainer(self, **variables: str) -> Iterator[Trainer]:
        with subprocess.Popen(
            [self.python, "-c", TRAINER], env=self.environ(**variables), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            try:
                yield Trainer(process)
            finally:
                process.kill()

    def aenv(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, "-m", "aenv.cli", *words], env=self.environ(), capture_output=True, text=True, check=False
        )


class Trainer:
    """A program that uses environments."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def say(self, *words: object) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


def make_venv(folder: Path, runtime: Path, owner: str) -> Venv:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    venv = Venv(folder, runtime)
    source = Path(local_platforms.__file__).parent.parent.parent
    (venv.packages / "shared.pth").write_text("\n".join([*site.getsitepackages(), str(source)]))
    (venv.packages / "whose.py").write_text(f"OWNER = {owner!r}\n")
    return venv


@pytest.fixture
def venvs(tmp_path: Path, short_folder: Path) -> Iterator[list[Venv]]:
    made = [make_venv(tmp_path / name, short_folder, name) for name in ("one", "two")]
    yield made
    stop_all(short_folder)
    assert not left_in(short_folder)


@pytest.fixture
def whose(tmp_path: Path) -> Path:
    (tmp_path / "whose-env").mkdir()
    (tmp_path / "whose-env" / "env.py").write_text(WHOSE)
    return tmp_path / "whose-env" / "env.py"


def status(venv: Venv) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(venv.aenv("local", "status", "-o", "json").stdout)["platforms"]
    return found


@pytest.mark.long
def test_two_interpreters_have_a_platform_each_with_their_own_packages(venvs: list[Venv], whose: Path) -> None:
    with venvs[0].trainer() as one, venvs[1].trainer() as two:
        assert one.say("create", whose) == "created"
        assert two.say("create", whose) == "created"
        assert (one.say("owner"), two.say("owner")) == ("one", "two")
        found = status(venvs[0])
        assert {each["interpreter"] for each in found} == {os.path.realpath(venv.folder) for venv in venvs}
        assert [(each["clients"], each["instances"]) for each in found] == [(1, 1)] * 2
        assert [each["own"] for each in found].count(True) == 1
        table = venvs[0].aenv("local", "status").stdout
        assert all(each["key"] in table and each["interpreter"] in table for each in found)
        listed = json.loads(venvs[0].aenv("instance", "list", "-o", "json").stdout)
        assert len(listed) == 2
        other = next(each for each in found if not each["own"])
        stopped = venvs[0].aenv("local", "stop")
        assert stopped.stdout == "stopped\n"
        assert "is in use and keeps running" in stopped.stderr
        assert [each["key"] for each in status(venvs[1])] == [other["key"]]
        assert one.say("owner").startswith("InstanceEnded")
        assert two.say("owner") == "two"
    assert "stopped the platform of" in venvs[0].aenv("local", "stop", "--all").stdout
    assert venvs[1].aenv("local", "status").returncode == 1


@pytest.mark.long
def test_an_upgrade_ends_no_rollout_and_the_old_platform_exits_once_unused(venvs: list[Venv], whose: Path) -> None:
    venv = venvs[0]
    with venv.trainer() as before:
        assert before.say("create", whose) == "created"
        old = status(venv)[0]["key"]
        (venv.packages / "upgrade.pth").write_text("import aenv._version; aenv._version.__version__ = '99.0'\n")
        with venv.trainer() as after:
            assert after.say("create", whose) == "created"
            assert {each["version"] for each in status(venv)} >= {"99.0"}
            assert len(status(venv)) == 2
            assert (before.say("owner"), after.say("owner")) == ("one", "one")
            assert before.say("create", whose) == "created"
            before.process.kill()
            before.process.wait()
            eventually_gone(LocalPaths(venv.runtime, None, old))  # it lingers for ten minutes otherwise
            assert after.say("owner") == "one"


def eventually_gone(where: LocalPaths) -> None:
    deadline = time.monotonic() + 60
    while is_alive(where):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.long
def test_platforms_of_one_user_share_the_capacity_of_the_machine(venvs: list[Venv], whose: Path) -> None:
    limit = {"AENV_SERVE_MAX_INSTANCES": "3"}
    with venvs[0].trainer(**limit) as one, venvs[1].trainer(**limit) as two:
        assert [one.say("create", whose), one.say("create", whose)] == ["created"] * 2
        assert two.say("create", whose) == "created"
        assert "3 of 3 instances" in two.say("create", whose, 1)
        assert one.say("release") == "released"
        assert two.say("create", whose) == "created"
        assert "3 of 3 instances" in one.say("create", whose, 1)
        own = next(each for each in status(venvs[1]) if each["own"])
        os.kill(own["pid"], signal.SIGKILL)  # its share of the capacity is free at once
        assert one.say("create", whose) == "created"
        assert one.say("owner") == "one"


def test_a_starter_that_dies_or_hangs_blocks_no_other_client(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AENV_RUNTIME_DIR", str(short_folder))
    where = LocalPaths.of_user()
    where.folder.mkdir()
    hold = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX); "
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(where.folder / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"held\n"
        waiting = threading.Thread(target=ensure_running, args=(where,))
        waiting.start()
        assert health(where) is None
        starter.kill()
        waiting.join(60)
        assert not waiting.is_alive()
    assert health(where) is not None
    with (where.folder / "lock").open("w") as file:  # a starter that hangs, beside a platform that answers
        fcntl.flock(file, fcntl.LOCK_EX)
        ensure_running(where)


def test_concurrent_starts_start_one_platform(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AENV_RUNTIME_DIR", str(short_folder))
    where = LocalPaths.of_user()
    starters = [threading.Thread(target=ensure_running, args=(where,)) for _ in range(6)]
    for each in starters:
        each.start()
    for each in starters:
        each.join(60)
    assert health(where) is not None
    assert where.log.read_text().count("serving at") == 1
    second = subprocess.run(
        [sys.executable, "-m", "aenv.cli", "serve", "--local", "--key", where.key], env=os.environ, check=False
    )
    assert second.returncode == local_platforms.OTHER_SERVES
    assert health(where) is not None


def test_a_platform_is_no_child_of_the_process_that_starts_it(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray kills the children of a worker that ends, while other workers on the machine have instances."""
    monkeypatch.setenv("AENV_RUNTIME_DIR", str(short_folder))
    code = """
import os
from aenv.client.local_platforms import LocalPaths, ensure_running
ensure_running(LocalPaths.of_user())
os.waitpid(-1, os.WNOHANG)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.strip().endswith("ChildProcessError: [Errno 10] No child processes"), done.stderr
    assert health(LocalPaths.of_user()) is not None


def test_a_platform_that_fails_to_start_reports_why(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AENV_RUNTIME_DIR", str(short_folder))
    monkeypatch.setenv("AENV_ENGINE", "no-such-engine")
    with pytest.raises(EnvironmentError, match="no-such-engine"):
        ensure_running(LocalPaths.of_user())


def test_an_invalid_boolean_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AENV_FORK", "maybe")
    with pytest.raises(ConfigError, match="AENV_FORK: invalid value 'maybe'"):
        Identity.own()


def test_different_code_gets_a_different_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Identity.own()
    assert own.key == Identity.own().key
    monkeypatch.setenv("AENV_ENGINE", "native")
    assert Identity.own() == own
    monkeypatch.setenv("AENV_ENGINE", "process")
    assert Identity.own().key != own.key
    monkeypatch.setenv("AENV_ENGINE", "native")
    monkeypatch.setenv("AENV_FORK", "1")
    assert Identity.own() == own
    monkeypatch.setenv("AENV_FORK", "0")
    unforked = Identity.own()
    assert unforked.key != own.key
    monkeypatch.setenv("AENV_FORK", "no")
    assert Identity.own() == unforked
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    assert not own.replaces(Identity.own())


def test_folders_of_platforms_unused_for_a_week_are_removed(short_folder: Path) -> None:
    where = LocalPaths(short_folder)
    for name in ("00000001", "00000002", "00000003"):
        (short_folder / name).mkdir()
        (short_folder / name / "alive").touch()
    old = time.time() - 2 * local_platforms.REMOVE_AFTER
    for name in ("00000001", "00000003"):
        os.utime(short_folder / name, (old, old))
    with (short_folder / "00000003" / "alive").open() as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        local_platforms.remove_old(where, time.time())
        assert [each.key for each in all_of_user(where)] == ["00000002", "00000003"]
        assert is_alive(LocalPaths(short_folder, None, "00000003"))
    assert PlatformInfo.read(where) is None


def wheel(folder: Path, owner: str) -> Path:
    """A package in a folder that pip and uv can install from."""
    folder.mkdir()
    with zipfile.ZipFile(folder / "whose_package-1.0-py3-none-any.whl", "w") as file:
        file.writestr("whose_package.py", f"OWNER = {owner!r}\n")
        about = "whose_package-1.0.dist-info"
        file.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: whose-package\nVersion: 1.0\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")
    return folder


@pytest.mark.long
def test_the_package_index_and_the_proxies_come_from_the_caller(
    project: Path, tmp_path: Path, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They must not be those of the process that happened to start the platform."""
    monkeypatch.setenv("AENV_RUNTIME_DIR", str(short_folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (project / "requirements.txt").write_text("whose-package\n")
    (project / "src" / "env.py").write_text(
        "import whose_package\nfrom aenv import register_tool\n"
        "@register_tool\ndef owner(): return whose_package.OWNER\n"
    )
    code = (
        "import sys; from aenv import SyncEnvironment\n"
        "with SyncEnvironment(sys.argv[1]) as env: print(env.call_tool('owner').data)"
    )
    nowhere = dict.fromkeys(("UV_INDEX_URL", "PIP_INDEX_URL", "https_proxy"), "http://127.0.0.1:9/")
    found = []
    for variables in (
        nowhere,
        *(
            {
                f"{tool}_{name}": value
                for tool in ("UV", "PIP")
                for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", at))
            }
            for at in (str(wheel(tmp_path / owner, owner)) for owner in ("ann", "bob"))
        ),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, str(project)], env={**os.environ, **variables}, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        found.append(done.stdout.strip() or done.stderr)
    assert "cannot be installed" in found[0]
    assert found[1:] == ["ann", "bob"]
    assert len(all_of_user(LocalPaths.of_user())) == 1
    about = PlatformInfo.read(LocalPaths.of_user())
    assert about is not None
    environ = Path(f"/proc/{about.pid}/environ").read_bytes()
    assert b"127.0.0.1:9" not in environ
    assert b"FIND_LINKS" not in environ


@pytest.mark.attack("local")
def test_a_runtime_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after ``su``: the owner of the folder can replace everything in it, sockets and lock files included."""
    others = tmp_path / "run"
    others.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(others, 12345, 12345)
    else:
        others = Path("/")
    monkeypatch.delenv("AENV_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(others))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(local_platforms, "socket_parent", lambda: str(tmp_path))
    monkeypatch.setattr(local_platforms, "LONGEST_FOLDER", 1000)
    assert LocalPaths.of_user("01234567").runtime == tmp_path / f"aenv-{os.geteuid()}"
    assert not (others / "aenv").exists()
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(own))
    assert LocalPaths.of_user("01234567").runtime == own / "aenv"
