"""Local platforms that share the capacity of one machine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from aenv.errors import Overloaded
from aenv.platform.instances.admission import Admission, Capacity
from aenv.platform.instances.machine_account import SLOTS, MachineAccount, MachineUsage, usage_by_platform
from aenv.platform.instances.machine_capacity import (
    FILES_OF_PLATFORM,
    FILES_PER_INSTANCE,
    MEMORY_PER_INSTANCE,
    MIN_INSTANCES,
    PROCESSES_PER_INSTANCE,
    instance_capacity,
    machine_bound,
)
from tests.conftest import run

HOLD = """
import sys
from pathlib import Path
from aenv.platform.instances.machine_account import MachineAccount
account = MachineAccount(Path(sys.argv[1]), "deadbeef")
account.set_instances(5)
account.set_leases(1)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "account"


def test_usage_of_a_killed_platform_no_longer_counts(path: Path) -> None:
    own = MachineAccount(path, "00000001")
    own.set_instances(2)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert own.other_instances == 5
        assert usage_by_platform(path) == {"00000001": MachineUsage(2, 0), "deadbeef": MachineUsage(5, 1)}
        other.kill()
        other.wait()
    assert own.other_instances == 0
    assert usage_by_platform(path) == {"00000001": MachineUsage(2, 0)}
    again = MachineAccount(path, "00000002")  # takes the slot of the killed platform
    assert (own.other_instances, again.other_instances) == (0, 2)
    for account in (own, again):
        account.close()
    assert usage_by_platform(path) == {}


def test_the_number_of_platforms_is_bounded(path: Path) -> None:
    accounts = [MachineAccount(path, f"{number:08x}") for number in range(SLOTS)]
    with pytest.raises(OSError, match="local platforms are running already"):
        MachineAccount(path, "ffffffff")
    for account in accounts:
        account.close()


def test_two_platforms_share_the_capacity_of_one(path: Path) -> None:
    async def main() -> None:
        accounts = [MachineAccount(path, name) for name in ("00000001", "00000002")]
        one, other = (Admission(Capacity(alive=3, wait=30), machine=account) for account in accounts)
        first, second = one.request("", "a", 2), other.request("", "b", 1)
        assert first.admitted
        assert second.admitted
        late = one.request("", "a", 1, seconds=0.1)
        assert not late.admitted
        assert "3 of 3 instances" in one.queue_reason(late)
        with pytest.raises(Overloaded, match="3 of 3"):
            await late.wait()
        queued = one.request("", "a", 1)
        second.release()  # on the other platform, which does not notify this one
        await queued.wait()
        assert queued.admitted
        assert [account.other_instances for account in accounts] == [0, 3]
        for ticket in (first, first, queued):
            ticket.release()
        assert [account.other_instances for account in accounts] == [0, 0]
        for account in accounts:
            account.close()

    run(main())


def test_two_platforms_never_both_take_the_last_place(path: Path) -> None:
    async def main() -> None:
        accounts = [MachineAccount(path, name) for name in ("00000001", "00000002")]
        one, other = (Admission(Capacity(alive=1, wait=30), machine=account) for account in accounts)
        taken = 0

        async def use(admission: Admission) -> None:
            nonlocal taken
            for _ in range(20):
                ticket = admission.request("", "", 1)
                await ticket.wait()
                taken += 1
                assert taken == 1
                await asyncio.sleep(0)
                taken -= 1
                ticket.release()

        await asyncio.gather(use(one), use(other))
        for account in accounts:
            account.close()

    run(main())


def test_default_capacity_is_bounded_by_open_files_and_says_so(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "sys/kernel").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal:       134217728 kB\n")
    few = machine_bound(proc, groups, open_files=1024)
    assert few is not None
    assert few.instances == (1024 - FILES_OF_PLATFORM) // FILES_PER_INSTANCE
    assert "open files" in few.resource
    assert "1,024" in few.resource
    held = machine_bound(proc, groups, open_files=1024, held=True)
    assert held is not None
    assert held.instances < few.instances
    many = machine_bound(proc, groups, open_files=1 << 20)
    assert many is not None
    assert many.instances == (128 << 30) // MEMORY_PER_INSTANCE
    assert "memory" in many.resource


def test_ten_thousand_instances_fit_on_128_gib_with_the_default_number_of_processes(
    tmp_path: Path,
) -> None:
    proc = tmp_path / "proc"
    (proc / "sys/kernel").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal:       134217728 kB\n")
    (proc / "sys/kernel/pid_max").write_text("32768\n")
    assert instance_capacity(proc, tmp_path, open_files=1 << 20) >= 10_000
    assert instance_capacity(proc, tmp_path, open_files=20_000) >= 10_000


def test_default_capacity_is_bounded_by_memory_and_processes(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "sys/kernel").mkdir(parents=True)
    groups.mkdir()
    (proc / "meminfo").write_text("MemTotal:       8388608 kB\nMemFree: 1 kB\n")
    (proc / "sys/kernel/pid_max").write_text("4194304\n")
    assert instance_capacity(proc, groups, open_files=1 << 20) == (8 << 30) // MEMORY_PER_INSTANCE
    (groups / "pids.max").write_text("400\n")
    assert instance_capacity(proc, groups, open_files=1 << 20) == 400 // PROCESSES_PER_INSTANCE
    (groups / "memory.max").write_text(f"{20 * MEMORY_PER_INSTANCE}\n")
    assert instance_capacity(proc, groups, open_files=1 << 20) == 20
    (groups / "memory.max").write_text(f"{MEMORY_PER_INSTANCE}\n")
    assert instance_capacity(proc, groups, open_files=1 << 20) == MIN_INSTANCES
    (groups / "memory.max").write_text("max\n")
    assert instance_capacity(proc, groups, open_files=1 << 20) == 400 // PROCESSES_PER_INSTANCE
