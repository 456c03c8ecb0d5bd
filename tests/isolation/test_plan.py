"""System calls as data: made by this process, and by one that runs nothing else."""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from aenv.isolation import linux, ptrace
from aenv.isolation.builder import WALL, Builder, waiting
from aenv.isolation.plan import Block, Later, Outcome, Plan
from tests.isolation.host import eventually

Do = Callable[[Plan], list[int]]


def _by_a_builder(plan: Plan) -> list[int]:
    builder = Builder(plan)
    try:
        builder.come()
        builder.go()
        _finished(builder)
        builder.check()
        return [builder.result(Outcome(call)) for call in range(plan.written(0).count)]
    finally:
        builder.close()


def _finished(builder: Builder) -> None:
    assert select.select([builder.done], [], [], 20.0)[0], "the builder does not finish"


@pytest.fixture(params=["here", "by a builder"])
def do(request: pytest.FixtureRequest) -> Do:
    if request.param == "by a builder" and not ptrace.supported():
        pytest.skip("builders are written for another processor")
    return (lambda plan: plan.run()) if request.param == "here" else _by_a_builder


@pytest.fixture
def plan(do: Do) -> Plan:
    return waiting() if do is _by_a_builder else Plan()


def test_folders_and_files_are_made(do: Do, plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_text("")
    plan.folder(f"{tmp_path}/there/below/deep", mode=0o700)
    plan.folder(f"{tmp_path}/there/below/other")
    plan.write(f"{tmp_path}/file", "written — so")
    do(plan)
    assert (tmp_path / "there/below/deep").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "there/below/other").is_dir()
    assert (tmp_path / "file").read_text() == "written — so"


def test_what_a_call_came_to_is_an_argument_of_others(do: Do, plan: Plan, tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    file = plan.do("openat", linux.HERE, f"{tmp_path}/new", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    wrote = plan.do("write", file, Block(b"a\0b"), 3)
    plan.do("close", file)
    results = do(plan)
    assert results[file.call] > 2
    assert results[wrote.call] == 3
    assert (tmp_path / "new").read_bytes() == b"a\0b"
    assert set(os.listdir("/proc/self/fd")) == before


def test_it_ends_with_the_first_call_that_fails(do: Do, plan: Plan, tmp_path: Path) -> None:
    plan.mount("nothing", f"{tmp_path}/missing", "tmpfs")
    plan.do("mkdirat", linux.HERE, f"{tmp_path}/after", 0o755)
    with pytest.raises(OSError, match=r"mount\(tmpfs, .*/missing\)") as caught:
        do(plan)
    assert caught.value.errno in (errno.ENOENT, errno.EPERM)
    assert not (tmp_path / "after").exists()


def test_an_error_that_does_not_matter(do: Do, plan: Plan, tmp_path: Path) -> None:
    again = plan.do("mkdirat", linux.HERE, str(tmp_path), 0o755, tolerated=errno.EEXIST)
    plan.do("mkdirat", linux.HERE, f"{tmp_path}/after", 0o755)
    assert do(plan)[again.call] == -errno.EEXIST
    assert (tmp_path / "after").is_dir()


def test_pointers_within_memory(do: Do, plan: Plan, tmp_path: Path) -> None:
    target = tmp_path / "gathered"
    file = plan.do("openat", linux.HERE, str(target), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    ranges = Block(
        bytes(8) + (3).to_bytes(8, "little") + bytes(8) + (2).to_bytes(8, "little"), ((0, b"abc"), (16, b"de"))
    )
    plan.do("writev", file, ranges, 2)
    plan.do("close", file)
    do(plan)
    assert target.read_bytes() == b"abcde"


@pytest.mark.skipif(not ptrace.supported(), reason="builders are written for another processor")
def test_a_builder_waits_until_it_is_told_and_its_memory_serves_the_next(tmp_path: Path) -> None:
    plan = waiting()
    plan.do("write", Later("file"), "x", 1)
    builder = Builder(plan)
    try:
        for number in range(3):
            builder.come()
            assert not select.select([builder.done], [], [], 0.05)[0]
            file = os.open(tmp_path / str(number), os.O_WRONLY | os.O_CREAT)
            builder.go(file=file)
            _finished(builder)
            builder.check()
            os.close(file)
            assert (tmp_path / str(number)).read_text() == "x"
            os.waitpid(builder.leave(), WALL)
    finally:
        builder.close()


@pytest.mark.skipif(not ptrace.supported(), reason="builders are written for another processor")
def test_a_builder_that_is_not_needed_any_more_is_gone(tmp_path: Path) -> None:
    builder = Builder(waiting())
    builder.come()
    pid = builder.pid
    assert Path(f"/proc/{pid}").exists()
    builder.close()
    eventually(lambda: Path(f"/proc/{pid}").exists(), "a builder is left")


@pytest.mark.skipif(not ptrace.supported(), reason="builders are written for another processor")
def test_a_builder_that_is_given_up_at_work_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    before = set(os.listdir("/proc/self/fd"))
    for number in range(50):
        plan = waiting()
        for _ in range(200):
            plan.write(f"{tmp_path}/file", "x")
        builder = Builder(plan)
        builder.come()
        builder.go()
        time.sleep(number / 50_000)  # somewhere within its work
        builder.close()
    assert set(os.listdir("/proc/self/fd")) == before
