"""Host user ids of sandboxes that root creates."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aenv.images import container
from aenv.isolation.limits import host_users
from aenv.platform.services import storages
from aenv.sdk.blocking import SyncEnvironment
from tests.isolation.conftest import Box, make_project
from tests.isolation.host import Platform

CLAIM = """
import sys
from aenv.isolation.limits import host_users

try:
    print(host_users.claim([sys.argv[1]], first=1000, count=int(sys.argv[2])), flush=True)
except OSError as error:
    print(error.strerror, flush=True)
input()
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's instances run as that user")


class Claimer:
    """A process that claims a user id and then waits."""

    def __init__(self, folder: Path, count: int, *around: str) -> None:
        self.process = subprocess.Popen(
            [*around, sys.executable, "-c", CLAIM, str(folder), str(count)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.answer = self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def test_a_user_id_is_exclusive_until_its_process_is_killed(tmp_path: Path) -> None:
    claimers = [Claimer(tmp_path, 3) for _ in range(4)]
    try:
        assert sorted(claimer.answer for claimer in claimers[:3]) == ["1000", "1001", "1002"]
        assert "are taken" in claimers[3].answer
        assert all(host_users.is_claimed(user, [str(tmp_path)]) for user in (1000, 1001, 1002))
        freed = claimers[1].answer
        claimers[1].kill()
        assert not host_users.is_claimed(int(freed), [str(tmp_path)])
        claimers.append(Claimer(tmp_path, 3))
        assert claimers[-1].answer == freed
    finally:
        for claimer in claimers:
            claimer.kill()


@pytest.mark.parametrize(("user", "mapped"), [(0, True), (65_534, True), (65_536, False), (host_users.FIRST, False)])
def test_root_of_a_rootless_container_has_few_user_ids(tmp_path: Path, user: int, mapped: bool) -> None:
    table = tmp_path / "uid_map"
    table.write_text("         0       1000          1\n         1     100000      65535\n")
    if mapped:
        host_users.check_mapped(user, table)
    else:
        with pytest.raises(OSError, match=f"has no user ids {user}"):
            host_users.check_mapped(user, table)


@as_root
def test_a_user_id_is_exclusive_across_pid_namespaces(tmp_path: Path) -> None:
    claimers = [Claimer(tmp_path, 2, "unshare", "--pid", "--fork", "--kill-child") for _ in range(2)]
    try:
        assert sorted(claimer.answer for claimer in claimers) == ["1000", "1001"]
    finally:
        for claimer in claimers:
            claimer.kill()


def test_a_claim_survives_exec_and_ends_with_the_program(tmp_path: Path) -> None:
    claim = (
        "import os, sys; from aenv.isolation.limits import host_users; "
        "host_users.claim([sys.argv[1]], first=1000, count=1)"
    )
    become = "os.execv(sys.executable, [sys.executable, '-c', 'print(1, flush=True); input()'])"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{claim}; {become}", str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    try:
        assert host_users.is_claimed(1000, [str(tmp_path)])
    finally:
        process.communicate("\n")
    assert not host_users.is_claimed(1000, [str(tmp_path)])


def test_a_lock_file_that_others_may_write_is_skipped(tmp_path: Path) -> None:
    open_one, link, own = (tmp_path / name for name in ("open", "link", "own"))
    for folder in (open_one, link, own):
        folder.mkdir()
    (open_one / host_users.NAME).touch()
    (open_one / host_users.NAME).chmod(0o666)
    (link / host_users.NAME).symlink_to(open_one / host_users.NAME)
    assert not host_users.is_claimed(1000, [str(tmp_path / "missing"), str(open_one), str(link), str(own)])
    assert (own / host_users.NAME).stat().st_mode & 0o777 == 0o600
    with pytest.raises(OSError, match="belongs to another user"):
        host_users.is_claimed(1000, [str(open_one)])


def owner_of(platform: Platform, project: Path) -> int:
    [instance] = platform.instances_of(project)
    status = Path(f"/proc/{instance.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1])


@as_root
def test_instances_of_two_projects_run_as_different_claimed_users(platform: Platform, tmp_path: Path) -> None:
    projects = [make_project(tmp_path, name=name) for name in ("one", "two")]
    with SyncEnvironment(str(projects[0])) as one, SyncEnvironment(str(projects[1])) as two:
        for env in (one, two):
            Box(env).python("result = 1")
        found = [owner_of(platform, project) for project in projects]
        assert len(set(found)) == 2
        assert all(host_users.is_claimed(user) for user in found)


@as_root
def test_an_instance_has_no_descriptor_of_the_lock_file(box: Box) -> None:
    links = """
        import os
        result = []
        for fd in os.listdir("/proc/self/fd"):
            try:
                result.append(os.readlink(f"/proc/self/fd/{fd}"))
            except OSError:
                pass
    """
    assert not [link for link in box.python(links) if host_users.NAME in link]


def test_two_storages_never_share_an_owner(tmp_path: Path) -> None:
    first = storages.owner(tmp_path / "a", ())
    assert first == storages.owner(tmp_path / "a", {5})
    second = storages.owner(tmp_path / "a", {first})
    assert second != first
    assert storages.owner(tmp_path / "a", {first, second}) not in (first, second)
    last = storages.FIRST_UID + storages.UID_COUNT
    assert all(storages.FIRST_UID <= storages.owner(tmp_path / str(n), ()) < last for n in range(100))
    ranges = (
        range(host_users.FIRST, host_users.FIRST + host_users.COUNT),
        range(container.FIRST, container.FIRST + container.COUNT),
    )
    assert all(each.stop <= storages.FIRST_UID or each.start >= last for each in ranges)
