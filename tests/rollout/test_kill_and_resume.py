"""Runner, platform, instances or capture proxy are killed at random; a resumed rollout has each record exactly once."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from aenv.trajectory import TrajectoryStore
from tests.isolation.host import Platform, forget_lease
from tests.rollout.conftest import SHOP, instances_in_use
from tests.rollout.proxy_program import RUN as PROXY_RUN
from tests.waiting import wait_while

ROUNDS = int(os.environ.get("AENV_ROLLOUT_KILL_ROUNDS", "5"))
SEED = int(os.environ.get("AENV_KILL_SEED", "0")) or random.randrange(1, 1 << 32)
PROGRAM = Path(__file__).parent / "runner_program.py"
REPOSITORY = Path(__file__).parents[2]
TASKS, SAMPLES = 4, 3
VICTIMS = ["runner", "runner", "platform", "instance", "proxy"]


class Proxy:
    """A capture proxy in a process of its own, which is started again when it was killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url_file = folder / "proxy-url"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, store: Path) -> None:
        self._store = store
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.rollout.proxy_program", str(store), str(self.url_file)], cwd=REPOSITORY
        )

    def kill(self) -> None:
        self.url_file.unlink(missing_ok=True)
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        """Kill it while requests may be under way, and start it again."""
        wait_while(lambda: not self.url_file.exists(), "the proxy does not start")
        self.kill()
        self.start(self._store)


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    made = Proxy(tmp_path)
    yield made
    made.kill()


def lines_until_killed(
    store: Path, platform: Platform, proxy: Proxy, victims: Mapping[int, str], dice: random.Random
) -> tuple[list[str], int, list[str]]:
    """Run the program; kill each victim after so many results. Return its lines, its exit code, and the kills."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), SHOP, str(store), str(SAMPLES), str(proxy.url_file)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, **platform.variables},
    )  # fmt: skip
    lines: list[str] = []
    killed: list[str] = []
    with process:
        assert process.stdout is not None
        try:
            while True:
                victim = victims.get(len(lines))
                if victim and kill(victim, process, platform, proxy, dice):
                    killed.append(victim)
                assert select.select([process.stdout], [], [], 120)[0], "the rollout does not go on"
                line = process.stdout.readline()
                if not line:
                    return lines, process.wait(), killed
                lines.append(line.strip())
        finally:
            process.kill()


def kill(victim: str, runner: subprocess.Popen[str], platform: Platform, proxy: Proxy, dice: random.Random) -> bool:
    """Kill a process of that kind; return whether there was one."""
    if victim == "runner":
        runner.kill()
    elif victim == "proxy":
        proxy.restart()
    elif found := {"platform": platform.servers, "instance": platform.instances}[victim]():
        dice.choice(found).kill()
    else:
        return False
    return True


@pytest.mark.long
@pytest.mark.timeout(120 + 60 * ROUNDS)
def test_a_rollout_that_is_killed_and_resumed_has_each_record_once(
    platform: Platform, proxy: Proxy, tmp_path: Path
) -> None:
    print(f"AENV_KILL_SEED={SEED} repeats this")
    began = time.monotonic()
    dice = random.Random(SEED)
    kills: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    retried = unfinished = 0
    for round_number in range(ROUNDS):
        store = tmp_path / f"store-{round_number}"
        proxy.start(store)
        for _ in range(4):
            victims = {dice.randrange(0, 10): dice.choice(VICTIMS) for _ in range(3)}
            _, code, killed = lines_until_killed(store, platform, proxy, victims, dice)
            kills.update(killed)
            if code == 0:
                break
        lines, code, _ = lines_until_killed(store, platform, proxy, {}, dice)
        proxy.kill()
        assert code == 0
        with TrajectoryStore.open(store) as opened:
            episodes = list(opened.all_episodes("killed"))
            final = [episode for episode in episodes if episode.final]
            assert Counter((episode.task, episode.sample) for episode in final) == {
                (f"apples-{number}", sample): 1 for number in range(1, TASKS + 1) for sample in range(SAMPLES)
            }
            assert all(replies(opened, episode.id) == 1 for episode in final if episode.outcome == "ok")
            assert not [episode for episode in opened.all_episodes(PROXY_RUN) if episode.final]
        assert len(lines) == TASKS * SAMPLES
        assert {(episode.outcome, episode.score) for episode in final} <= {("ok", 1.0), ("infra", None), ("env", None)}
        assert not [episode for episode in episodes if episode.outcome == "infra" and episode.reward is not None]
        wait_while(lambda: instances_in_use(platform), "instances are left")
        outcomes += Counter(str(episode.outcome) for episode in final)
        retried += sum(episode.attempt > 0 for episode in final)
        unfinished += sum(episode.outcome is None for episode in episodes)
    print(
        f"rounds: {ROUNDS}, kills: {dict(sorted(kills.items()))}\n"
        f"records: {sum(outcomes.values())} of {ROUNDS * TASKS * SAMPLES}, outcomes: {dict(outcomes)}\n"
        f"repeated after a fault: {retried}; episodes that died unfinished and do not count: {unfinished}\n"
        f"double records: 0; rewards of a fault: 0; instances left: 0\n"
        f"seed {SEED}, {time.monotonic() - began:.0f} s"
    )
    forget_lease()


def replies(store: TrajectoryStore, episode: str) -> int:
    """Return how many answers of the model are recorded in an episode."""
    return sum(event["kind"] == "message" and event["role"] == "assistant" for event in store.events(episode))


def test_ctrl_c_leaves_nothing_running_and_the_run_can_be_resumed(platform: Platform, tmp_path: Path) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text(
        "import pathlib\n"
        "async def agent(episode):\n"
        "    await episode.call('add_to_cart', item='apple', count=int(episode.instruction.split()[1]))\n"
        f"    if episode.task.id == 'apples-4' and not pathlib.Path({str(tmp_path / 'go')!r}).exists():\n"
        f"        pathlib.Path({str(tmp_path / 'waits')!r}).touch()\n"
        "        await episode.call('nap', seconds=600)\n"
    )
    command = [
        sys.executable, "-m", "aenv.cli", "rollout", SHOP, "--agent", f"{agent}:agent", "--store",
        str(tmp_path / "store"), "--run", "mine", "-o", "json",
    ]  # fmt: skip
    variables = {**os.environ, **platform.variables}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)
    with process:
        wait_while(lambda: not (tmp_path / "waits").exists() and process.poll() is None, "no episode has begun")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "--run mine" in said
    wait_while(lambda: instances_in_use(platform), "instances are left")
    with TrajectoryStore.open(tmp_path / "store") as store:
        before = store.finished("mine")
        assert ("apples-4", 0) not in before
    (tmp_path / "go").touch()
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr
    with TrajectoryStore.open(tmp_path / "store") as store:
        assert len(store.finished("mine")) == 4
        assert Counter(episode.final for episode in store.episodes("mine"))[True] == 4


@pytest.mark.long
def test_ctrl_c_ends_the_blocking_loop_and_leaves_nothing_running(platform: Platform, tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM.with_name("blocking_program.py")), SHOP, str(tmp_path / "store")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **platform.variables}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "0 ok\n"
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "interrupted 0\n")
    wait_while(lambda: instances_in_use(platform), "instances are left")
    with TrajectoryStore.open(tmp_path / "store") as store:
        assert store.finished("blocking") == {("apples-1", 0)}
        ended = {episode.sample: episode.outcome for episode in store.episodes("blocking")}
    assert set(ended.values()) <= {"ok", "cancelled"}
