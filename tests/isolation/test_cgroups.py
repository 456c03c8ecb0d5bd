"""Control groups of both versions."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aenv.isolation.limits import cgroups
from aenv.isolation.limits.cgroups import Cgroup, Cgroups, Limits
from tests.isolation.conftest import make_project
from tests.isolation.host import Platform, own_platform
from tests.waiting import wait_while

LIMITS = Limits(memory=64 << 20, cpus=0.5, processes=32)
JOIN = (
    "import os, sys; [os.write(int(fd), b'0') for fd in sys.argv[1:]]\n"
    "print(open('/proc/self/cgroup').read(), flush=True); input()"
)


@pytest.fixture
def unified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake hierarchy of version 2: `mkdir` creates the files of a group like the kernel."""
    made = Path.mkdir

    def mkdir(self: Path, *arguments: object, **options: object) -> None:
        made(self, *arguments, **options)  # type: ignore[arg-type]
        (self / "cgroup.controllers").write_text("cpu memory pids")
        (self / "cgroup.subtree_control").write_text("")
        (self / "cgroup.procs").touch()

    top = tmp_path / "cgroup"
    mkdir(top)
    monkeypatch.setattr(Path, "mkdir", mkdir)
    return top


def test_limits_are_written_to_the_files_of_version_2(unified: Path) -> None:
    groups = Cgroups("aenv-1", unified)
    assert groups.controllers == ["cpu", "memory", "pids"]
    group = groups.make(LIMITS)
    assert group is not None
    [path] = group.paths  # one for all controllers
    assert path.parent.name == "aenv-1"
    written = {name: (path / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max", "cpu.max")}
    assert written == {
        "memory.max": str(64 << 20), "memory.swap.max": "0", "pids.max": "32", "cpu.max": "50000 100000"
    }  # fmt: skip


HOLD = """
import sys
from pathlib import Path
from aenv.isolation.limits.cgroups import Cgroups, Limits

groups = Cgroups(sys.argv[1], Path(sys.argv[2]))
group = groups.make(Limits(memory=64 << 20))
print(*(path.parent for path in group.paths if group), flush=True)
input()
"""


def hold(name: str, top: Path, *around: str) -> tuple[subprocess.Popen[str], list[Path]]:
    """Start a process that creates and locks groups; return it and their folders. ``around``: command to wrap it in."""
    process = subprocess.Popen(
        [*around, sys.executable, "-c", HOLD, name, str(top)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, [Path(text) for text in process.stdout.readline().split()]


@pytest.fixture(params=["1", "2"])
def folders(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Folders laid out like the two versions; every folder within is a group."""
    top = tmp_path / "cgroup"
    for name in cgroups.CONTROLLERS if request.param == "1" else ():
        (top / name).mkdir(parents=True)
    if request.param == "2":
        top.mkdir()
        (top / "cgroup.controllers").write_text("cpu memory pids")
        (top / "cgroup.subtree_control").write_text("cpu memory pids")
    return top


def test_groups_of_a_killed_process_are_removed_by_the_next(folders: Path) -> None:
    if (folders / "cgroup.controllers").exists():  # files that the kernel would create in a new group
        for name in ("aenv-1", "aenv-2", "aenv-3"):
            (folders / name).mkdir()
            (folders / name / "cgroup.subtree_control").write_text("cpu memory pids")
    killed, dead = hold("aenv-1", folders)
    kept, alive = hold("aenv-2", folders)
    try:
        assert dead
        assert alive
        assert all(cgroups.is_held(path) for path in (*dead, *alive))
        killed.kill()
        killed.wait()
        assert not any(cgroups.is_held(path) for path in dead)
        for path in (file for group in dead for file in group.rglob("*") if file.is_file()):
            path.unlink()  # in a real group, files do not keep the folder from being removed
        Cgroups("aenv-3", folders).remove()
        assert not any(path.exists() for path in dead)
        assert all(cgroups.is_held(path) and list(path.iterdir()) for path in alive)
    finally:
        kept.communicate("\n")
        killed.communicate()


def test_a_group_that_was_never_locked_is_not_an_orphan(folders: Path) -> None:
    group = folders / ("" if (folders / "cgroup.controllers").exists() else "memory") / "aenv-unlocked"
    group.mkdir()
    cgroups.sweep(top=folders)
    assert group.exists()
    assert not cgroups.is_held(group)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create a pid namespace without a user namespace")
def test_an_owner_in_another_pid_namespace_counts_as_alive(folders: Path) -> None:
    if (folders / "cgroup.controllers").exists():
        (folders / "aenv-1").mkdir()
        (folders / "aenv-1" / "cgroup.subtree_control").write_text("cpu memory pids")
    other, groups = hold("aenv-1", folders, "unshare", "--pid", "--fork", "--kill-child")
    try:
        cgroups.sweep(top=folders)
        assert groups
        assert all(cgroups.is_held(path) for path in groups)
    finally:
        other.communicate("\n")


def test_processes_with_the_same_pid_have_different_groups() -> None:
    code = "from aenv.isolation.limits.cgroups import group_name; print(group_name())"
    command = [sys.executable, "-c", code]
    if os.geteuid() == 0:  # each has pid 1 in its namespace
        command = ["unshare", "--pid", "--fork", *command]
    names = {subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)}
    assert len(names) == 2
    assert cgroups.group_name() == cgroups.group_name()


USE = """
import sys
from aenv.sdk.blocking import SyncEnvironment

with SyncEnvironment(sys.argv[1]) as env:
    print(env.call_tool("hello", {}).data, flush=True)
    input()
"""


@contextlib.contextmanager
def using(project: Path, platform: Platform) -> Iterator[None]:
    """Run a program that has an instance of a project on its own platform."""
    process = subprocess.Popen(
        [sys.executable, "-c", USE, str(project)], env={**os.environ, **platform.variables},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "hello\n"
        yield
    finally:
        process.communicate("\n")


@pytest.mark.long
def test_groups_of_a_platform_killed_with_its_crash_cleanup_are_removed_by_the_next(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    with own_platform() as platform:
        with using(project, platform):
            processes = platform.processes()
            groups = platform.cgroups()
            for process in processes:
                os.kill(process.pid, signal.SIGSTOP)  # so that none cleans up before it is killed
            for process in processes:
                process.kill()
            wait_while(lambda: [process for process in processes if process.alive], "killed processes are alive")
        assert processes
        if not groups:
            pytest.skip("this user may not create control groups here")
        with using(project, platform):
            assert [path for path in groups if path.exists()] == []
            assert platform.processes()
            assert platform.cgroups()


def test_usage_is_read_from_the_files_of_version_2(tmp_path: Path) -> None:
    for name, text in {
        "memory.current": "4096\n", "pids.current": "3\n", "cpu.stat": "usage_usec 1500\nuser_usec 1000\n"
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    assert Cgroup([tmp_path]).usage() == {"memory_bytes": 4096, "processes": 3, "cpu_nanoseconds": 1_500_000}


COUNTED = {"memory.current": "4096\n", "pids.current": "0\n", "cpu.stat": "usage_usec 1500\nuser_usec 1000\n"}


def _count(path: Path, **counted: str) -> None:
    for name, text in (COUNTED | {name.replace("_", "."): text for name, text in counted.items()}).items():
        (path / name).write_text(text)


def test_a_returned_group_is_reused_with_fresh_counters(unified: Path) -> None:
    groups = Cgroups("aenv-1", unified)
    first, second = groups.make(LIMITS), groups.make(LIMITS)
    assert first is not None
    assert second is not None
    for group in (first, second):
        _count(group.paths[0])
        assert group.usage()["cpu_nanoseconds"] == 1_500_000
        groups.give_back(LIMITS, group)
    again = groups.make(LIMITS)
    assert again is not None
    assert again.paths == first.paths, "not the group returned first"
    assert again.usage() == {"memory_bytes": 4096, "processes": 0, "cpu_nanoseconds": 0}
    _count(again.paths[0], cpu_stat="usage_usec 1700\n")
    assert again.usage()["cpu_nanoseconds"] == 200_000
    groups.give_back(LIMITS, again)
    other = groups.make(replace(LIMITS, memory=1 << 30))
    assert other is not None
    assert other.paths not in (first.paths, second.paths), "a group with other limits"
    assert (other.paths[0] / "memory.max").read_text() == str(1 << 30)


@pytest.mark.parametrize("counted", [{"pids_current": "1\n"}, {"memory_current": f"{cgroups.MAX_RESIDUE + 1}\n"}])
def test_a_group_with_residue_is_not_reused(unified: Path, counted: dict[str, str]) -> None:
    groups = Cgroups("aenv-1", unified)
    group = groups.make(LIMITS)
    assert group is not None
    _count(group.paths[0], **counted)
    groups.give_back(LIMITS, group)
    another = groups.make(LIMITS)
    assert another is not None
    assert another.paths != group.paths


def test_spare_groups_are_limited(unified: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "MAX_SPARES", 3)
    removed: list[Cgroup] = []
    monkeypatch.setattr(Cgroup, "remove", lambda self: removed.append(self))
    groups = Cgroups("aenv-1", unified)
    made = [groups.make(replace(LIMITS, processes=number % 2 + 8)) for number in range(5)]
    for number, group in enumerate(made):
        assert group is not None
        _count(group.paths[0])
        groups.give_back(replace(LIMITS, processes=number % 2 + 8), group)
    assert len(removed) == 2
    kept = [groups.make(replace(LIMITS, processes=number % 2 + 8)) for number in range(5)]
    before = [group.paths for group in made if group is not None]
    assert len([group for group in kept if group is not None and group.paths in before]) == 3


def test_idle_groups_are_removed_some_at_a_time(unified: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "MAX_IDLE_SPARES", 2)
    monkeypatch.setattr(cgroups, "TRIM_BATCH", 2)
    removed: list[Cgroup] = []
    monkeypatch.setattr(Cgroup, "remove", lambda self: removed.append(self))
    groups = Cgroups("aenv-1", unified)
    made = [groups.make(LIMITS) for _ in range(5)]
    for group in made:
        assert group is not None
        _count(group.paths[0])
        groups.give_back(LIMITS, group)
    assert removed == []
    assert groups.trim(), "three are left"
    assert not groups.trim()
    assert [group.paths for group in removed] == [group.paths for group in made[:3] if group is not None]


@pytest.fixture
def hierarchy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A real hierarchy of version 2 in which this user may create groups."""
    lines = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    top = next((Path(words[1]) for words in lines if words[2] == "cgroup2"), None)
    if top is None:
        pytest.skip("no control groups of version 2 are mounted here")
    if not os.access(top / "cgroup.subtree_control", os.W_OK):
        pytest.skip("this user may not create control groups of version 2 here")
    available = (top / "cgroup.controllers").read_text().split()
    ours = tuple(set(cgroups.CONTROLLERS) & set(available)) or tuple(available[:1])
    if not ours:
        pytest.skip("all controllers belong to version 1 here")
    monkeypatch.setattr(cgroups, "CONTROLLERS", ours)
    before = (top / "cgroup.subtree_control").read_text().split()
    yield top
    for controller in set(ours) - set(before):
        (top / "cgroup.subtree_control").write_text(f"-{controller}")


def test_a_process_joins_a_group_of_version_2_which_is_removed_after_it(hierarchy: Path) -> None:
    name = f"aenv-test-{os.getpid()}"
    groups = Cgroups(name, hierarchy)
    try:
        assert set(cgroups.CONTROLLERS) - {"cpu"} <= set(groups.controllers)  # systemd may not delegate cpu
        if "memory" in groups.controllers:
            group = groups.make(LIMITS)
            assert group is not None
        else:
            [root] = hierarchy.rglob(name)
            (root / "box").mkdir()
            group = Cgroup([root / "box"])
        fds = group.open_for_joining()
        process = subprocess.Popen(
            [sys.executable, "-c", JOIN, *map(str, fds)],
            pass_fds=fds, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        for fd in fds:
            os.close(fd)
        assert process.stdout is not None
        assert any(
            line.startswith("0::") and line.strip().endswith(f"{name}/{group.paths[0].name}") for line in process.stdout
        )
        group.remove()
        assert group.paths[0].exists()  # a process is in it
        process.communicate("\n")
        wait_while(lambda: (group.remove(), group.paths[0].exists())[1], "the group is not removed")
    finally:
        groups.remove()
    assert not list(hierarchy.rglob(name))
