"""Rollouts on a Ray cluster of two nodes on this machine, one of which dies."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.treasure import GRADES, TREASURE, needs, printed_project

needs("ray", "ray")

import ray  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from aenv.adapters.trainers.ray import RayRollout  # noqa: E402
from aenv.client import local_platforms  # noqa: E402
from aenv.trajectory import TrajectoryStore  # noqa: E402

pytestmark = pytest.mark.timeout(280)
TASKS = [{"id": side, "variables": {"TREASURE": side}} for side in ("left", "right")]
AGENT = '''
import asyncio

async def walk_left(episode):
    """Walk to the left end; slowly where there is a folder that says so."""
    await episode.call("move", direction="left", steps=3)

async def process(episode):
    """Call the tool of the printed environment."""
    await episode.call("my_tool", param1="it")

async def linger(episode):
    """Note the node, and stay until the test lets go."""
    import os, pathlib
    import ray
    folder = pathlib.Path(os.environ["LINGER"])
    (folder / f"{ray.get_runtime_context().get_node_id()}-{os.getpid()}-{episode.task.id}-{episode.sample}").touch()
    while not (folder / "go").exists():
        await asyncio.sleep(0.05)
    await episode.call("move", direction="left", steps=3)
'''


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Two nodes. Their workers have the variables of this process."""
    (tmp_path / "agents.py").write_text(AGENT)
    monkeypatch.setenv("LINGER", str(tmp_path))
    monkeypatch.setenv("RAY_enable_infeasible_task_early_exit", "true")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        ray.init(address=made.address, log_to_driver=False, logging_level="error")
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def test_episodes_are_spread_recorded_and_graded(cluster: Cluster, tmp_path: Path, store: Path) -> None:
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()

    async def main() -> list[Any]:
        made = RayRollout(TREASURE, tasks=TASKS, agent=f"{tmp_path}/agents.py:walk_left", samples=4, store=store)
        return [result async for result in made]

    results = asyncio.run(main())
    assert Counter((result.task, result.outcome, result.score) for result in results) == {
        ("left", "ok", 1.0): 4,
        ("right", "ok", 0.0): 4,
    }
    with TrajectoryStore.open(store) as opened:
        recorded = [each.id for each in opened.all_episodes()]  # no second attempts
        assert sorted(recorded) == sorted(result.episode for result in results)
        assert "move" in str(list(opened.events(results[0].episode)))


def test_an_environment_as_a_document_prints_it_is_run(cluster: Cluster, tmp_path: Path, store: Path) -> None:
    (tmp_path / "my-env").mkdir()
    project = printed_project(tmp_path / "my-env")

    async def main() -> list[Any]:
        made = RayRollout(project, tasks=GRADES, agent=f"{tmp_path}/agents.py:process", store=store)
        return [result async for result in made]

    results = asyncio.run(main())
    assert {(each.task, each.outcome, each.score) for each in results} == {("good", "ok", 1.0), ("bad", "ok", -0.5)}


def test_a_node_that_dies_loses_no_episode_and_doubles_none(cluster: Cluster, tmp_path: Path, store: Path) -> None:
    doomed = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()

    async def main() -> list[Any]:
        made = RayRollout(
            TREASURE, tasks=TASKS, agent=f"{tmp_path}/agents.py:linger", samples=3, concurrency=6, store=store
        )
        results = []

        async def collect() -> None:
            async for result in made:
                results.append(result)

        running = asyncio.ensure_future(collect())
        # until both nodes run episodes
        while len({file.name.split("-")[0] for file in tmp_path.glob("*-*-*-*")}) < 2 and not running.done():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await _killed(cluster, doomed, tmp_path)
        (tmp_path / "go").touch()
        await running
        return results

    results = asyncio.run(main())
    assert Counter((result.task, result.sample) for result in results) == {
        (side, sample): 1 for side in ("left", "right") for sample in range(3)
    }
    assert {result.outcome for result in results} == {"ok"}
    with TrajectoryStore.open(store) as opened:
        recorded = list(opened.all_episodes())
    final = [each for each in recorded if each.final]
    lost = [each for each in recorded if not each.final]
    assert len(final) == 6
    assert lost
    assert all(each.outcome == "infra" and each.score is None for each in lost)


def test_256_episodes_at_once_survive_the_death_of_a_node(cluster: Cluster, tmp_path: Path, store: Path) -> None:
    """Each node has a local platform of its own, and all episodes have begun when one node dies."""
    with tempfile.TemporaryDirectory(prefix="aet", dir="/tmp", ignore_cleanup_errors=True) as folder:
        doomed = cluster.add_node(num_cpus=1, env_vars={"AENV_RUNTIME_DIR": f"{folder}/run"})
        cluster.wait_for_nodes()
        try:
            results = asyncio.run(_killed_when_all_have_begun(cluster, doomed, tmp_path, store))
        finally:
            for where in local_platforms.all_of_user(local_platforms.LocalPaths(Path(folder, "run"))):
                local_platforms.stop(where)
    assert Counter((result.task, result.sample) for result in results) == {
        (side, sample): 1 for side in ("left", "right") for sample in range(128)
    }
    assert Counter((result.task, result.outcome, result.score) for result in results) == {
        ("left", "ok", 1.0): 128,
        ("right", "ok", 0.0): 128,
    }
    with TrajectoryStore.open(store) as opened:
        recorded = list(opened.all_episodes())
    assert Counter(each.final for each in recorded)[True] == 256
    lost = [each for each in recorded if not each.final]
    assert len(lost) == 128
    assert {(each.outcome, each.score) for each in lost} == {("infra", None)}


async def _killed_when_all_have_begun(cluster: Cluster, doomed: Any, folder: Path, store: Path) -> list[Any]:
    made = RayRollout(
        TREASURE, tasks=TASKS, agent=f"{folder}/agents.py:linger", samples=128, concurrency=256, store=store
    )

    async def collect() -> list[Any]:
        return [result async for result in made]

    running = asyncio.ensure_future(collect())
    while len(list(folder.glob("*-*-*-*"))) < 256 and not running.done():  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    await _killed(cluster, doomed, folder)
    (folder / "go").touch()
    return await running


async def _killed(cluster: Cluster, node: Any, folder: Path) -> None:
    """Kill a node, and wait until its workers have ended too: they notice it, and could still return an episode."""
    workers = {int(file.name.split("-")[1]) for file in folder.glob(f"{node.node_id}-*")}
    assert workers
    await asyncio.to_thread(cluster.remove_node, node, allow_graceful=False)
    while any(_runs(pid) for pid in workers):  # noqa: ASYNC110
        await asyncio.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_command_runs_on_ray(cluster: Cluster, tmp_path: Path, store: Path) -> None:
    command = ["rollout", TREASURE, "--agent", "gold", "--on", "ray", "--no-baseline", "--store", str(store)]
    done = subprocess.run(
        [sys.executable, "-m", "aenv.cli", *command, "--output", "json"],
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, "RAY_ADDRESS": cluster.address},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout)
    assert summary["outcomes"] == {"ok": 2}
    assert summary["reward"]["mean"] == 1.0
