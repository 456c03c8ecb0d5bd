"""`aenv ps`, `aenv top` and `aenv doctor`: on a platform, on a terminal, and on a machine with leftovers."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aenv.cli.instance_table import cells, page
from aenv.cli.usage_sampling import Row
from aenv.platform.operations.host_audit import HostAudit
from tests.conftest import fetch
from tests.platform.parts import Served, environ

Tokens = Callable[..., str]


@pytest.fixture
def busy(platform: Served, tokens: Tokens) -> Any:
    """Two instances, one of them called three times."""
    own = {"authorization": f"Bearer {tokens('ann')}"}
    requests = [{"envName": "counter", "owner": "ann", "labels": {"experiment": name}} for name in ("e1", "e2")]
    made = [fetch(platform.url, "/env-instance", request, headers=own)[1]["data"]["id"] for request in requests]
    for _ in range(3):
        fetch(platform.url, "/tools/increment", {}, headers={**own, "AEnvCore-EnvInstance-ID": made[0]})
    yield made
    for name in made:
        fetch(platform.url, f"/env-instance/{name}", method="DELETE", headers=own)


def _command(platform: Served, token: str, *args: str) -> list[str]:
    return [sys.executable, "-m", "aenv.cli", *args, "--system-url", platform.url, "--api-key", token]


def _aenv(platform: Served, token: str, *args: str) -> str:
    done = subprocess.run(
        _command(platform, token, *args), env=environ(platform.data), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ps_shows_instances_and_their_usage(platform: Served, tokens: Tokens, busy: list[str]) -> None:
    rows = {row["id"]: row for row in json.loads(_aenv(platform, tokens("ann"), "ps", "-o", "json"))}
    assert set(rows) == set(busy)
    first = rows[busy[0]]
    assert (first["environment"], first["status"], first["owner"]) == ("counter@1.2.0", "Running", "ann")
    assert [rows[name]["calls"] for name in busy] == [3, 0]
    assert [rows[name]["experiment"] for name in busy] == ["e1", "e2"]
    assert first["memory"] > 100_000
    assert first["processes"] >= 1
    assert first["cpu"] >= 0
    text = _aenv(platform, tokens("ann"), "ps", "--name", "counter")
    assert re.search(rf"^{busy[0]} +counter@1.2.0 +Running .* MB +\d+ +3 +\S+ +ann +e1$", text, re.M), text
    assert _aenv(platform, tokens("bob"), "ps") == "no instances\n"
    seen = {row["id"]: row["account"] for row in json.loads(_aenv(platform, platform.first_token, "ps", "-o", "json"))}
    assert {seen[name] for name in busy} == {"ann"}  # an administrator sees whose they are
    assert {row["account"] for row in rows.values()} == {""}


def test_top_without_a_terminal_is_one_page(platform: Served, tokens: Tokens, busy: list[str]) -> None:
    text = _aenv(platform, tokens("ann"), "top", "--every", "0.1", "--sort", "calls")
    assert text.splitlines()[0] == f"{platform.url}  2 running"
    assert [line.split()[0] for line in text.splitlines()[4:]] == busy
    rows = json.loads(_aenv(platform, tokens("ann"), "top", "--once", "--every", "0.1", "-o", "json"))
    assert sum(row["calls"] for row in rows) == 3


def test_top_on_a_terminal_follows_keys_and_restores_the_screen(
    platform: Served, tokens: Tokens, busy: list[str]
) -> None:
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(environ(platform.data), TERM="xterm")
        command = _command(platform, tokens("ann"), "top", "--every", "0.2")
        os.execv(command[0], command)
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("4H", 6, 60, 0, 0))
    shown = ""
    try:
        before = termios.tcgetattr(fd)[3]
        shown = _until(fd, shown, "by cpu")
        os.write(fd, b"n")
        shown = _until(fd, shown, "by calls")
        frame = re.sub(r"\x1b\[.", "", shown.rpartition("\x1b[H")[2]).splitlines()
        assert all(len(line.rstrip()) < 60 for line in frame), frame
        assert len(frame) <= 6
        os.write(fd, b"q")
        shown = _until(fd, shown, "\x1b[?25h\x1b[?1049l")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert termios.tcgetattr(fd)[3] == before
    finally:
        os.close(fd)
    assert shown.startswith("\x1b[?1049h\x1b[?25l")


def _until(fd: int, shown: str, wanted: str) -> str:
    deadline = time.monotonic() + 60
    while wanted not in shown:
        assert time.monotonic() < deadline, shown
        if select.select([fd], [], [], 0.5)[0]:
            shown += os.read(fd, 65536).decode()
    return shown


def test_an_unknown_value_is_not_shown_as_zero() -> None:
    row = Row("x", "env", "Running", "", "", 90061.0, None, None, None, None, None)
    assert cells(row) == ("x", "env", "Running", "1d01h", "-", "-", "-", "-", "-", "-", "-")
    assert page([], "cpu", "here").startswith("here  no instances\n")


def test_doctor_reports_what_this_machine_supports(platform: Served, sandboxes: None) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "aenv.cli", "doctor", "-o", "json"],
        env={**environ(platform.data), "AENV_RUNTIME_DIR": str(platform.data)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
    said = json.loads(done.stdout)
    found = {each["what"]: each for each in said["findings"]}
    assert said["native"]
    for needed in ("native engine", "user namespaces", "system-call filter", "overlay file system", "packages"):
        assert found[needed]["state"] == "ok", found[needed]
    assert all(each["hint"] for each in said["findings"] if each["state"] == "missing"), found
    assert not [left for left in said["leftovers"] if str(platform.data) in left["what"]]


def test_doctor_fails_where_no_sandbox_can_be_created(platform: Served) -> None:
    """Run it in a user namespace that allows no further ones."""
    if not os.path.exists("/usr/bin/unshare"):
        pytest.skip("needs unshare of util-linux")
    script = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh", sys.executable, "-m", "aenv.cli", "doctor"],
        env={**environ(platform.data), "AENV_RUNTIME_DIR": str(platform.data)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 3, done.stdout + done.stderr
    assert "BROKEN   user namespaces: this kernel allows none" in done.stdout
    assert "sysctl user.max_user_namespaces" in done.stdout


def test_doctor_says_what_root_of_a_small_user_namespace_lacks(platform: Served) -> None:
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", sys.executable, "-m", "aenv.cli", "doctor"],
        env={**environ(platform.data), "AENV_RUNTIME_DIR": str(platform.data)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 3, done.stdout + done.stderr
    assert "BROKEN   native engine: root here is root of a user namespace that has no user ids 900000" in done.stdout
    assert "run aenv as an ordinary user" in done.stdout


def test_doctor_reports_memory_that_is_not_limited(platform: Served) -> None:
    hidden = 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"'
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", hidden, "sh", sys.executable, "-m", "aenv.cli",
         "doctor"],
        env={**environ(platform.data), "AENV_RUNTIME_DIR": str(platform.data)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    [line] = [line for line in done.stdout.splitlines() if "control groups" in line]
    assert "memory, pids, cpu cannot be limited here" in line
    assert "Not limited: memory that processes share without a file" in line


def test_leftovers_are_reported_and_resources_in_use_are_not(tmp_path: Path) -> None:
    groups, runtime, temporary = tmp_path / "cgroup", tmp_path / "run", tmp_path / "tmp"
    gone = subprocess.Popen(["true"])
    gone.wait()
    server = subprocess.Popen([sys.executable, "-c", "input()", "aenv-serve-known"], stdin=subprocess.PIPE)
    for path in (
        groups / "memory" / f"aenv-{gone.pid}" / "0a1b",
        groups / "memory" / f"aenv-{server.pid}",
        groups / "memory" / "somebody-elses",
        groups / "memory" / "aenv-1-busy" / "0a1b",
        groups / "memory" / "aenv-kube-10.251",
        runtime / "01234567" / f"i-{gone.pid}",
        runtime / "0badcafe" / f"i-{gone.pid}",
        temporary / "aenv-serve-gone",
        temporary / "aenv-serve-known",
    ):
        path.mkdir(parents=True)
    (groups / "memory" / "aenv-1-busy" / "0a1b" / "cgroup.procs").write_text("1\n")
    alive = (runtime / "0badcafe" / "alive").open("w")  # its platform lives, whatever its pid is elsewhere
    fcntl.flock(alive, fcntl.LOCK_EX)
    try:
        left = _found(tmp_path, HostAudit(runtime, groups, temporary, young=0.0))
        assert _found(tmp_path, HostAudit(runtime, groups, temporary)) == [], (
            "they may be those of a server that starts"
        )
    finally:
        server.communicate(b"\n")
        alive.close()
    assert left == [
        ("cgroup", str(groups / "memory" / f"aenv-{gone.pid}")),
        ("folder", str(runtime / "01234567" / f"i-{gone.pid}")),
        ("folder", str(temporary / "aenv-serve-gone")),
    ]


@pytest.mark.parametrize("helper", ["aenv.isolation.forking.zygote", "aenv.isolation.network.egress_proxy"])
def test_a_helper_process_without_its_server_is_reported(tmp_path: Path, helper: str) -> None:
    """The command line of the parent must not contain aenv, so everything is in variables."""
    assert importlib.util.find_spec(helper) is not None
    parent = subprocess.Popen(
        ["sh", "-c", '"$PYTHON" -c "import os; print(os.getpid(), flush=True); input()" $ARGUMENTS; true'],
        env={**os.environ, "PYTHON": sys.executable, "ARGUMENTS": f"-m {helper}"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    try:
        left = HostAudit(tmp_path, tmp_path, tmp_path, young=0.0).all()
    finally:
        parent.communicate(b"\n")
    assert f"kill {pid}" in [each.hint.partition(";")[0] for each in left if each.kind == "process"]


def _found(folder: Path, leftovers: HostAudit) -> list[tuple[str, str]]:
    return sorted((each.kind, each.what) for each in leftovers.all() if str(folder) in each.what)
