"""Faults on a platform under load: nothing is lost, nothing is left behind, and no client is told anything wrong."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.storm import DAY, ENV, Storm
from tests.conftest import fetch
from tests.platform.conftest import _remove, publish
from tests.storage.valkey import started
from tests.waiting import wait_while

ROUNDS = int(os.environ.get("AENV_CHAOS_ROUNDS", "1"))
"""How often each fault is injected."""
SEED = int(os.environ.get("AENV_CHAOS_SEED", "0")) or random.randrange(1, 1 << 32)
DISK = 96 << 20

pytestmark = pytest.mark.timeout(600 + 600 * ROUNDS)


@pytest.fixture
def data(sandboxes: None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="aenv-c-", dir="/tmp"))
    asyncio.run(publish(folder, "tally", ENV))
    yield folder
    _remove(folder)


@pytest.fixture
def small_disk(sandboxes: None) -> Iterator[Path]:
    """A data folder that is soon full."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    folder = Path(tempfile.mkdtemp(prefix="aenv-c-", dir="/tmp"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=700", "chaos", folder], check=True)
    try:
        asyncio.run(publish(folder, "tally", ENV))
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
        folder.rmdir()


def rage(storm: Storm, dice: random.Random) -> None:
    """Inject every fault in random order, then check the outcome."""
    print(f"AENV_CHAOS_SEED={SEED} AENV_CHAOS_ROUNDS={ROUNDS} repeats this, more or less")
    try:
        storm.start()
        for _ in range(2):
            storm.begin_client()
        for number in range(ROUNDS):
            order = dice.sample(list(storm.actions), len(storm.actions))
            print(f"round {number}: {' '.join(order)}")
            for what in order:
                storm.strike(what)
        did = storm.end_clients()
        print(f"clients: {dict(did)}")
        assert did["done"] > 0
        assert did["compared"] > 0
        storm.agree()
        storm.delete_all()
        storm.agree()
        storm.stop()
        assert "Traceback" not in storm.log(), storm.log()
    finally:
        storm.close()


def test_a_storm_with_records_in_redis(data: Path, tmp_path: Path) -> None:
    (tmp_path / "valkey").mkdir()
    with started(tmp_path / "valkey") as valkey:
        dice = random.Random(SEED)
        rage(Storm(data, tmp_path, dice, valkey=valkey, disk=False), dice)


@pytest.mark.long
def test_a_storm_on_a_small_disk(small_disk: Path, tmp_path: Path) -> None:
    dice = random.Random(SEED)
    rage(Storm(small_disk, tmp_path, dice, valkey=None, disk=True), dice)


def test_a_full_disk_is_reported_and_existing_instances_stay_usable(small_disk: Path, tmp_path: Path) -> None:
    storm = Storm(small_disk, tmp_path, random.Random(SEED), valkey=None, disk=True)
    try:
        storm.start()
        one, other = (storm.make(ttl="10m")[1]["data"]["id"] for _ in range(2))
        with storm.full_disk():
            assert storm.add(one, "a") == "1"
            status, answer = storm.make()
            assert status in (503, 507), answer
            assert answer["success"] is False
            assert storm.said() == {one, other}
            assert fetch(storm.url, f"/env-instance/{other}", method="DELETE")[0] == 200
            storm.kill_server(start=False)
        storm.start()
        assert storm.add(one, "b") == "2"
        storm.agree()
        assert storm.said() == {one}
        assert storm.make()[0] == 200
        storm.stop()
    finally:
        storm.close()


def test_setting_the_clock_ends_no_instance_too_early_or_too_late(data: Path, tmp_path: Path) -> None:
    storm = Storm(data, tmp_path, random.Random(SEED), valkey=None, disk=False)
    try:
        storm.start()
        long = storm.make(ttl="1h")[1]["data"]["id"]
        storm.set_clock(5 * DAY)
        assert storm.add(long, "a") == "1"
        brief = storm.make(ttl="4s")[1]["data"]["id"]
        storm.set_clock(-5 * DAY)
        storm.kill_server()
        assert storm.add(long, "b") == "2"
        wait_while(lambda: storm.said() != {long}, "an instance outlives its time")
        assert "time to live" in fetch(storm.url, f"/env-instance/{brief}")[1]["data"]["reason"]
        storm.agree()
        storm.stop()
    finally:
        storm.close()
