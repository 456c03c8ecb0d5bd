"""Classification of a sandbox's end: cause and fault."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from aenv.engines.exits import classify
from aenv.errors import InstanceEnded, from_answer, problem
from aenv.isolation.limits.cgroups import Cgroup

CASES = [
    (-signal.SIGKILL, True, "out_of_memory", "policy"),
    (-signal.SIGKILL, False, "killed", "infra"),
    (-signal.SIGSEGV, False, "crashed", "env"),
    (-signal.SIGSEGV, True, "crashed", "env"),
    (0, False, "exited", "env"),
    (3, True, "exited", "env"),
    (143, False, "signalled", "policy"),
]


@pytest.mark.parametrize(("code", "out_of_memory", "cause", "fault"), CASES)
def test_an_exit_status_has_one_cause_and_one_fault(code: int, out_of_memory: bool, cause: str, fault: str) -> None:
    ended = classify(code, out_of_memory=out_of_memory)
    assert (ended.cause, ended.fault) == (cause, fault)
    assert ended.reason


def test_the_fault_of_an_end_survives_the_wire() -> None:
    said = problem(InstanceEnded.because("mine-1", "out of memory", "policy"))
    heard = from_answer(410, said)
    assert isinstance(heard, InstanceEnded)
    assert heard.fault == "policy"
    assert "out of memory" in heard.message


def test_an_end_of_unknown_fault_is_infra() -> None:
    assert InstanceEnded.because("mine-1", "lost").fault == "infra"
    assert from_answer(410, {"code": "instance_ended", "error": "x", "fault": "nonsense"}).fault == "infra"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("memory.events", "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
    ],
)
def test_kills_at_the_memory_limit_are_counted_with_both_versions_of_control_groups(
    tmp_path: Path, file: str, text: str
) -> None:
    group = Cgroup([tmp_path])
    assert group.oom_kills() == 0
    (tmp_path / file).write_text(text)
    assert group.oom_kills() == 2


def test_a_control_group_with_kills_is_not_used_again(tmp_path: Path) -> None:
    (tmp_path / "pids.current").write_text("0\n")
    group = Cgroup([tmp_path])
    assert group.recycled() is not None
    (tmp_path / "memory.events").write_text("oom_kill 1\n")
    assert group.recycled() is None
