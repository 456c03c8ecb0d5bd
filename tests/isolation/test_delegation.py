"""Servers in control groups that systemd delegates to them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from aenv.isolation.limits import delegation
from aenv.isolation.limits.cgroups import own_group
from tests.isolation.host import systemd_delegates_groups
from tests.waiting import wait_while

SERVER = """
from aenv.isolation.limits.delegation import enter_delegated_group
from aenv.isolation.limits.cgroups import Cgroups, Limits, own_group

assert enter_delegated_group()
groups = Cgroups("aenv-test")
group = groups.make(Limits(processes=16))
print(own_group(), group.paths[0], *groups.controllers, flush=True)
input()
"""


@pytest.fixture
def unified(tmp_path: Path) -> Path:
    """Fake files of version 2 for a group with only this process in it."""
    group = own_group(tmp_path)
    group.mkdir(parents=True, exist_ok=True)
    (group / "cgroup.procs").write_text(f"{os.getpid()}\n")
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    return tmp_path


@pytest.fixture
def systemd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """A fake systemd whose busctl runs a script; the returned file records its arguments."""
    asked = tmp_path / "asked"

    def answers(script: str) -> Path:
        busctl = tmp_path / "bin" / "busctl"
        busctl.parent.mkdir()
        busctl.write_text(f'#!/bin/sh\necho "$@" >> {asked}\n{script}\n')
        busctl.chmod(busctl.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(busctl.parent), prepend=":")
        monkeypatch.setattr(delegation, "_systemd_runs", lambda: True)
        monkeypatch.setattr(os, "geteuid", lambda: 0)  # use the system bus, whether or not it exists
        return asked

    return answers


def test_systemd_gives_a_server_a_scope_that_ends_with_it() -> None:
    if not systemd_delegates_groups():
        pytest.skip("no systemd that this user can reach manages control groups of version 2 here")
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    own, made, *controllers = server.stdout.readline().split()
    scope = Path(own).parent
    assert scope.name.startswith(f"aenv-{server.pid}-")
    assert Path(made).parent.parent == scope
    assert {"memory", "pids"} <= set(controllers)
    assert (Path(made) / "pids.max").read_text() == "16\n"
    server.kill()
    server.wait()
    server.stdin.close() if server.stdin else None
    server.stdout.close()
    wait_while(scope.exists, "the scope stays")


def test_a_process_alone_in_an_unmanaged_group_takes_it_over(unified: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegation, "_systemd_runs", lambda: False)
    assert delegation.enter_delegated_group(unified)
    assert (own_group(unified) / delegation.LEAF / "cgroup.procs").read_text() == "0"


def test_a_group_with_other_processes_is_left_unchanged(unified: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegation, "_systemd_runs", lambda: False)
    (own_group(unified) / "cgroup.procs").write_text(f"{os.getpid()}\n{os.getppid()}\n")
    assert not delegation.enter_delegated_group(unified)
    assert not (own_group(unified) / delegation.LEAF).exists()


def test_systemd_is_not_asked_with_control_groups_of_version_1(tmp_path: Path, systemd: Callable[[str], Path]) -> None:
    asked = systemd("exit 0")
    assert not delegation.enter_delegated_group(tmp_path)
    assert not asked.exists()


@pytest.mark.parametrize("answer", ["exit 1", "exit 0"], ids=["refused", "accepted, but not moved"])
def test_nothing_changes_without_a_scope(
    answer: str, unified: Path, systemd: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = systemd(answer)
    monkeypatch.setattr(delegation, "REPLY_SECONDS", 60.0)
    monkeypatch.setattr(delegation, "MOVE_SECONDS", 0.1)
    before = own_group()
    assert not delegation.enter_delegated_group(unified)
    assert f" PIDs au 1 {os.getpid()} Delegate b true " in asked.read_text()
    assert own_group() == before


def test_a_systemd_that_does_not_reply_times_out(
    unified: Path, systemd: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    systemd("exec sleep 600")
    monkeypatch.setattr(delegation, "REPLY_SECONDS", 0.1)
    assert not delegation.enter_delegated_group(unified)


def test_systemd_is_not_asked_for_a_user_without_a_session(
    unified: Path, systemd: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = systemd("exec sleep 60")
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    assert not delegation.enter_delegated_group(unified)
    assert not asked.exists()


def test_a_systemd_service_stays_in_its_own_group(
    unified: Path, systemd: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = systemd("exit 0")
    monkeypatch.setenv("SYSTEMD_EXEC_PID", str(os.getpid()))
    assert not delegation.enter_delegated_group(unified)
    assert not asked.exists()
