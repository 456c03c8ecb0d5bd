"""Plans of system calls, made by Python and by machine instructions."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from aenv.isolation.kernel import linux, syscall_plan
from aenv.isolation.kernel.syscall_plan import MemoryBlock, Outcome, PlanTable, SyscallPlan

Do = Callable[[SyscallPlan], list[int]]


def _by_instructions(plan: SyscallPlan) -> list[int]:
    table = PlanTable(plan)
    table.run()
    return [table.result(Outcome(call)) for call in range(table.count)]


@pytest.fixture(params=[SyscallPlan.run, _by_instructions], ids=["by Python", "by machine instructions"])
def do(request: pytest.FixtureRequest) -> Do:
    return cast("Do", request.param)


@pytest.fixture
def plan() -> SyscallPlan:
    return SyscallPlan()


def test_a_plan_makes_folders_and_writes_files(do: Do, plan: SyscallPlan, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_text("")
    plan.folder(f"{tmp_path}/there/below/deep", mode=0o700)
    plan.folder(f"{tmp_path}/there/below/other")
    plan.write(f"{tmp_path}/file", "written — so")
    do(plan)
    assert (tmp_path / "there/below/deep").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "there/below/other").is_dir()
    assert (tmp_path / "file").read_text() == "written — so"


def test_a_result_can_be_an_argument_of_later_calls(do: Do, plan: SyscallPlan, tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    file = plan.do("openat", linux.HERE, f"{tmp_path}/new", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    wrote = plan.do("write", file, MemoryBlock(b"a\0b"), 3)
    plan.do("close", file)
    results = do(plan)
    assert results[file.call] > 2
    assert results[wrote.call] == 3
    assert (tmp_path / "new").read_bytes() == b"a\0b"
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_plan_ends_with_the_first_call_that_fails(do: Do, plan: SyscallPlan, tmp_path: Path) -> None:
    plan.mount("nothing", f"{tmp_path}/missing", "tmpfs")
    plan.do("mkdirat", linux.HERE, f"{tmp_path}/after", 0o755)
    with pytest.raises(OSError, match=r"mount\(tmpfs, .*/missing\)") as caught:
        do(plan)
    assert caught.value.errno in (errno.ENOENT, errno.EPERM)
    assert not (tmp_path / "after").exists()


def test_a_tolerated_error_does_not_end_a_plan(do: Do, plan: SyscallPlan, tmp_path: Path) -> None:
    again = plan.do("mkdirat", linux.HERE, str(tmp_path), 0o755, tolerated=errno.EEXIST)
    plan.do("mkdirat", linux.HERE, f"{tmp_path}/after", 0o755)
    assert do(plan)[again.call] == -errno.EEXIST
    assert (tmp_path / "after").is_dir()


def test_a_memory_block_can_hold_pointers(do: Do, plan: SyscallPlan, tmp_path: Path) -> None:
    target = tmp_path / "gathered"
    file = plan.do("openat", linux.HERE, str(target), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    ranges = MemoryBlock(
        bytes(8) + (3).to_bytes(8, "little") + bytes(8) + (2).to_bytes(8, "little"), ((0, b"abc"), (16, b"de"))
    )
    plan.do("writev", file, ranges, 2)
    plan.do("close", file)
    do(plan)
    assert target.read_bytes() == b"abcde"


def test_the_machine_code_is_what_its_source_assembles_to(tmp_path: Path) -> None:
    compiler, copy = shutil.which("gcc"), shutil.which("objcopy")
    if compiler is None or copy is None:
        pytest.skip("gcc and objcopy are not installed")
    if linux.MACHINE != "x86_64":
        pytest.skip(f"the source is for x86-64, and this machine is {linux.MACHINE}")
    source = Path(syscall_plan.__file__).with_name("run_plan.S")
    subprocess.run([compiler, "-c", "-o", "plan.o", source], cwd=tmp_path, check=True)
    built = {}
    for section in ("enter", "run_plan", "leave", "breakpoint"):
        subprocess.run(
            [copy, "-O", "binary", f"--only-section=.{section}", "plan.o", section], cwd=tmp_path, check=True
        )
        built[section] = (tmp_path / section).read_bytes()
    assert built["run_plan"] == syscall_plan.RUN_PLAN
    assert built["breakpoint"] == syscall_plan.BREAKPOINT
    assert built["enter"] + built["run_plan"] + built["leave"] == syscall_plan.FUNCTION
