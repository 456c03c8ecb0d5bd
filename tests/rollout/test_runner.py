"""The runner: samples, retries, resume, order, progress, and its blocking twin."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from aenv import Environment
from aenv._version import __version__
from aenv.errors import NotFound, UsageError
from aenv.project.bundles.packing import pack
from aenv.rollout import Adaptive, CommandAgent, Episode, ScriptedModel, calls, find_tasks, keep_alive, rollout
from aenv.rollout.agents.tool_loop import tool_loop
from aenv.rollout.runs.rollout_run import describe_agent
from aenv.rollout.runs.run_lock import only_runner
from aenv.trajectory import TrajectoryStore
from aenv.trajectory.replay import replay
from tests.conftest import run
from tests.rollout.conftest import SHOP, results_of
from tests.waiting import wait_while

WANTED: dict[str, Any] = {"arguments": {"wanted": {}}}

pytestmark = pytest.mark.usefixtures("platform")
DICE = """
import random
from aenv import register_reward, register_tasks, register_tool

first = random.random()

@register_tool
def look() -> list[float]:
    "Show a number of the start, and a new one."
    return [first, random.random()]

@register_reward
def reward() -> float:
    return first

@register_tasks
def tasks() -> list[dict[str, str]]:
    return [{"id": "a"}, {"id": "b"}]
"""


def buy_as_told(messages: Any, tools: Any) -> Any:
    """Buy what the instruction says, then stop."""
    if messages[-1]["role"] == "tool":
        return "Done."
    return calls(("add_to_cart", {"item": "apple", "count": int(messages[0]["content"].split()[1])}))


def test_every_sample_of_every_task_is_run_and_recorded_once(store: TrajectoryStore) -> None:
    made = rollout(SHOP, model=ScriptedModel(buy_as_told), samples=3, store=store, concurrency=4)
    results = results_of(made)
    assert sorted((result.task, result.sample) for result in results) == [
        (f"apples-{number}", sample) for number in range(1, 5) for sample in range(3)
    ]
    assert {(result.outcome, result.reward) for result in results} == {("ok", 1.0)}
    assert store.finished(made.run) == {(result.task, result.sample) for result in results}
    kinds = [event["kind"] for event in store.events(results[0].episode)]
    assert kinds == [
        "begin", "message", "message", "call", "result", "message", "message", "usage", "call", "result", "end",
    ]  # fmt: skip
    begin, *_, end = store.events(results[0].episode)
    assert begin["environment"] == {
        "name": "shop", "version": "1.0.0", "source": SHOP, "digest": pack(Path(SHOP)).bundle.digest(),
    }  # fmt: skip
    assert (begin["agent"]["version"], begin["agent"]["digest"][:7]) == (__version__, "sha256:")
    assert (end["outcome"], end["reward"], end["final"]) == ("ok", 1.0, True)


def test_agents_are_described_by_version_and_digest(tmp_path: Path) -> None:
    program = tmp_path / "agent.py"
    program.write_text("print('hello')\n")
    digest = f"sha256:{hashlib.sha256(program.read_bytes()).hexdigest()}"
    command = f"python {program}"
    assert describe_agent(CommandAgent(command), command) == {"name": command, "digest": digest}
    assert describe_agent(CommandAgent("true x"), "true x") == {"name": "true x"}
    own = describe_agent(tool_loop, "loop")
    assert (own["name"], own["version"]) == ("loop", __version__)


def test_a_trajectory_has_neither_solution_nor_hidden_data(store: TrajectoryStore) -> None:
    task = {
        "id": "a",
        "prompt": "x",
        "answer": "the-answer",
        "solution": [{"tool": "nap", "arguments": {"seconds": 0}}],
    }
    [result] = results_of(rollout(SHOP, agent="nop", tasks=[task], store=store, retries=0))
    begin = next(iter(store.events(result.episode)))
    assert begin["task"] == {"id": "a", "instruction": "x", "seed": begin["seed"]}


def test_an_agent_sees_neither_reward_nor_answers(store: TrajectoryStore) -> None:
    seen = []

    async def agent(episode: Episode) -> None:
        seen.append(episode.task)

    results_of(rollout(SHOP, agent=agent, store=store, limit=1))
    assert (seen[0].reward.arguments, seen[0].solution, seen[0].hidden) == ({}, [], {})


def test_a_resumed_run_repeats_nothing_that_finished(store: TrajectoryStore) -> None:
    ran = []

    async def agent(episode: Episode) -> None:
        ran.append(episode.task.id)

    first = results_of(rollout(SHOP, agent=agent, samples=2, store=store, run="again", limit=2))
    ran.clear()
    second = results_of(rollout(SHOP, agent=agent, samples=2, store=store, run="again"))
    assert sorted(set(ran)) == ["apples-3", "apples-4"]
    assert sorted(result.episode for result in second if result.resumed) == sorted(result.episode for result in first)
    assert len(second) == 8


def test_a_run_is_not_resumed_with_other_arguments(store: TrajectoryStore) -> None:
    results_of(rollout(SHOP, agent="nop", store=store, run="mine", limit=1))
    with pytest.raises(UsageError, match="different arguments: agent"):
        results_of(rollout(SHOP, agent="gold", store=store, run="mine", limit=1))


def test_a_rollout_without_tasks_leaves_no_run(store: TrajectoryStore) -> None:
    with pytest.raises(UsageError, match="two tasks have the id 'a'"):
        results_of(rollout(SHOP, agent="nop", tasks=[{"id": "a"}, {"id": "a"}], store=store))
    with pytest.raises(NotFound):
        results_of(rollout("no-such-environment", agent="nop", store=store))
    assert store.runs() == []


def test_a_run_has_one_runner_at_a_time(store: TrajectoryStore) -> None:
    with only_runner(store.path / "running", "busy"), pytest.raises(UsageError, match="another process"):
        results_of(rollout(SHOP, agent="nop", store=store, run="busy", limit=1))


def test_a_slow_episode_holds_up_no_other(store: TrajectoryStore) -> None:
    others_done = asyncio.Event()
    finished = []

    async def agent(episode: Episode) -> None:
        if episode.task.id == "apples-1":
            await others_done.wait()

    async def main() -> None:
        async for result in rollout(SHOP, agent=agent, store=store, concurrency=2).results():
            finished.append(result.task)
            if len(finished) == 3:
                others_done.set()

    run(main())
    assert finished[-1] == "apples-1"


def test_concurrency_is_bounded(store: TrajectoryStore) -> None:
    now, most = 0, 0

    async def agent(episode: Episode) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await episode.call("add_to_cart", item="apple")
        now -= 1

    results_of(rollout(SHOP, agent=agent, store=store, samples=3, concurrency=2))
    assert most == 2


def test_the_blocking_loop_gives_the_same_and_can_be_left(store: TrajectoryStore) -> None:
    assert [result.reward for result in rollout(SHOP, agent="gold", store=store, limit=2)] == [1.0, 1.0]
    made = rollout(SHOP, agent="gold", store=store, samples=4, concurrency=2)
    for _ in made:
        break
    assert made.progress.running == 0


def test_samples_of_a_task_start_alike_also_where_the_environment_draws_random_numbers(
    store: TrajectoryStore, tmp_path: Path
) -> None:
    (tmp_path / "dice.py").write_text(DICE)
    drawn: dict[str, list[Any]] = {}

    async def agent(episode: Episode) -> None:
        drawn.setdefault(episode.task.id, []).append((await episode.call("look")).data)

    async def draw(seed: int | None) -> dict[str, list[Any]]:
        drawn.clear()
        given = rollout(str(tmp_path / "dice.py"), agent=agent, samples=4, store=store, seed=seed, retries=0)
        assert [result.outcome async for result in given] == ["ok"] * 8
        return dict(drawn)

    first, again, other = [run(draw(seed)) for seed in (None, None, 5)]
    for found in (first, again, other):
        assert all(len(samples) == 4 and samples.count(samples[0]) == 4 for samples in found.values())
        assert found["a"][0] != found["b"][0]
    assert first == again
    assert first["a"][0] != other["a"][0]
    [*_, last] = store.all_episodes()
    assert run(replay(store.events(last.id))).equal


def test_samples_of_a_task_have_different_seeds_for_their_agents(store: TrajectoryStore) -> None:
    seeds = []

    async def agent(episode: Episode) -> None:
        seeds.append((episode.task.id, episode.sample, episode.seed))

    for _ in range(2):
        results_of(rollout(SHOP, agent=agent, store=store, samples=2, seed=7, limit=2))
    assert len(set(seeds)) == 4


def test_variables_and_the_seed_of_a_task_reach_its_instance(store: TrajectoryStore) -> None:
    seen = []

    async def agent(episode: Episode) -> None:
        seen.append(await episode.env.call_function("variables", {"names": ["COLOUR", "AENV_SEED"]}))

    tasks = [{"id": "a", "variables": {"COLOUR": "red"}, "seed": 7, "reward": WANTED}]
    results_of(rollout(SHOP, agent=agent, store=store, tasks=tasks, samples=2, retries=0))
    assert seen == [["red", "7"]] * 2


def test_the_setup_function_gives_the_instruction(store: TrajectoryStore) -> None:
    seen = []

    async def agent(episode: Episode) -> None:
        seen.append(episode.instruction)

    task = {"id": "a", "setup": {"function": "start", "arguments": {"name": "Ada"}}, "reward": WANTED}
    results_of(rollout(SHOP, agent=agent, store=store, tasks=[task], retries=0))
    assert seen == ["Serve Ada."]


def test_an_instance_is_renewed_while_its_episode_runs(store: TrajectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep_alive, "RENEW_SECONDS", 0.1)

    async def agent(episode: Episode) -> None:
        env = cast(Environment, episode.env)
        before = (await env.get_env_info())["updated_at"]
        async with asyncio.timeout(60):
            while (await env.get_env_info())["updated_at"] == before:  # noqa: ASYNC110 - the platform changes it
                await asyncio.sleep(0.05)

    [result] = results_of(rollout(SHOP, agent=agent, store=store, limit=1))
    assert result.outcome == "ok", result


def test_progress_counts_outcomes_rewards_and_tokens(store: TrajectoryStore) -> None:
    made = rollout(SHOP, model=ScriptedModel(buy_as_told), store=store)
    assert len(results_of(made)) == 4
    assert made.progress.done == made.progress.total == 4
    assert made.progress.mean_score == 1.0
    assert made.progress.output_tokens > 0
    assert made.progress.line().startswith("4/4 done, 0 running | reward 1.000 |")


def test_adaptive_concurrency_grows_until_it_is_refused() -> None:
    cpu_share = 0.1
    room = Adaptive(start=2, maximum=64, cpu_share=lambda: cpu_share)
    for _ in range(200):
        room.finished()
    assert room.limit == 64
    room.refused()
    room.refused()  # within a second: the effect of the first one is not known yet
    assert room.limit == 32
    cpu_share = 1.0
    room.finished()
    assert room.limit == 32


def test_adaptive_concurrency_does_not_grow_while_the_model_is_slow() -> None:
    room = Adaptive(start=8, cpu_share=lambda: 0.0)
    room.answered(0.1)
    for _ in range(50):
        room.answered(1.0)
    room.finished()
    assert room.limit == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples"),
        ({"concurrency": 0}, "concurrency"),
        ({"agent": "no-such-agent"}, "unknown agent"),
        ({"tasks": "no-such-file"}, "no tasks at"),
        ({"tasks": []}, "no tasks to run"),
        ({"limits": {"seconds": -1}}, "seconds: Input should be greater than 0"),
        ({"limits": {"money": 1}}, "money: Extra inputs"),
        ({"tasks": [{"id": "a"}, {"id": "a"}]}, "two tasks have the id"),
    ],
)
def test_wrong_arguments_are_refused(store: TrajectoryStore, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        results_of(rollout(SHOP, **{"agent": "nop", "store": store, **options}))


def test_tasks_come_from_files(store: TrajectoryStore, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"prompt": "x\u2028y", "answer": 1}\n\n{"id": "b", "prompt": "y"}\n', encoding="utf-8")
    made = rollout(SHOP, agent="nop", tasks=file, store=store, retries=0)
    assert sorted(result.task for result in results_of(made)) == ["0", "b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"id": "a"}\nnothing\n', "line 2 is not JSON"),
        ('{"id": "a"}\n{"id": "b", "limits": {"steps": 0}}\n', "row 2 is not a task: limits.steps"),
        ('{"id": "a"}\n7\n', "does not contain a list of objects"),
    ],
)
def test_a_file_that_has_other_rows_than_tasks_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "tasks.jsonl").write_text(text)
    with pytest.raises(UsageError, match=message):
        rollout(SHOP, agent="nop", tasks=tmp_path / "tasks.jsonl")


def test_tasks_come_from_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra for Parquet is not installed")
    import pyarrow

    rows = [{"id": "a", "prompt": "x", "answer": 1, "metadata": {"level": 2}}, {"id": "b", "prompt": "y", "answer": 2}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "tasks.parquet")
    first, second = run(find_tasks(tmp_path / "tasks.parquet", SHOP).tasks())
    assert (first.instruction, first.metadata, first.hidden) == ("x", {"level": 2}, {"answer": 1})
    assert second.metadata == {}


def test_programs_of_an_agent_cannot_read_the_answers(store: TrajectoryStore, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "private").mkdir()
    (tmp_path / "config.json").write_text(Path(SHOP, "config.json").read_text().replace("shop", "riddle"))
    (tmp_path / "private" / "tasks.jsonl").write_text('{"id": "a", "prompt": "guess", "answer": "ANSWER-FORTY-TWO"}\n')
    (tmp_path / "src" / "riddle.py").write_text(
        "import json\n"
        "from aenv import private, register_reward, register_tasks\n"
        "@register_tasks\n"
        "def tasks():\n"
        "    return [json.loads(line) for line in private('tasks.jsonl').read_text().splitlines()]\n"
        "@register_reward\n"
        "def solved() -> float:\n"
        "    return 0.0\n"
    )
    found = []

    async def agent(episode: Episode) -> None:
        look = "env; cat /proc/*/environ; grep -rs ANSWER-FORTY /app /tmp /home /run . ; find / -name 'tasks.json*'"
        done = await episode.env.exec(f"({look}) 2>/dev/null | tr '\\0' '\\n'")  # type: ignore[attr-defined]
        found.append(done.stdout)

    [result] = results_of(rollout(str(tmp_path), agent=agent, store=store, retries=0))
    assert (result.outcome, result.reward) == ("ok", 0.0), result
    assert "PATH=" in found[0]
    assert "ANSWER-FORTY" not in found[0]
    assert "tasks.jsonl" not in found[0]


@pytest.mark.parametrize("environment", ["hello-env", "hello-env@1.0.0"])
def test_tools_have_the_same_names_whether_or_not_a_version_is_given(store: TrajectoryStore, environment: str) -> None:
    names: list[str] = []

    async def agent(episode: Episode) -> None:
        names.extend(tool["function"]["name"] for tool in episode.tools)

    results_of(rollout(environment, agent=agent, tasks=[{"id": "a", "instruction": "x"}], store=store, retries=0))
    assert "ask_name" in names


def test_an_installed_package_brings_an_agent(
    store: TrajectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "brought.py").write_text("async def agent(episode):\n    episode.note('brought')\n")
    installed = tmp_path / "brought-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[aenv.agents]\nbrought = brought:agent\n")
    monkeypatch.syspath_prepend(tmp_path)
    [result] = results_of(rollout(SHOP, agent="brought", store=store, limit=1))
    begin, *_ = events = list(store.events(result.episode))
    assert (begin["agent"]["name"], begin["agent"]["version"]) == ("brought", "1.0")
    assert "brought" in [event.get("text") for event in events]


def test_arguments_go_to_the_environments_list_of_tasks(store: TrajectoryStore) -> None:
    made = rollout(SHOP, agent="nop", tasks="?count=2", store=store)
    assert len(results_of(made)) == 2


def test_a_command_is_an_agent(store: TrajectoryStore, tmp_path: Path) -> None:
    program = tmp_path / "agent.py"
    program.write_text(
        "import os, re, sys\n"
        "from aenv import SyncEnvironment\n"
        "count = int(re.search(r'\\d+', open(os.environ['AENV_TASK_INSTRUCTION']).read())[0])\n"
        "with SyncEnvironment('shop@1.0.0') as env:\n"
        "    env.call_tool('add_to_cart', {'item': 'apple', 'count': count})\n"
        "sys.exit(3 if os.environ['AENV_TASK'] == 'apples-2' else 0)\n"
    )
    made = rollout(SHOP, agent=f"{sys.executable} {program}", store=store, limit=2)
    results = {result.task: result for result in results_of(made)}
    assert {task: (result.outcome, result.reward) for task, result in results.items()} == {
        "apples-1": ("ok", 1.0), "apples-2": ("policy", 1.0),
    }  # fmt: skip
    calls_made = [event["tool"] for event in store.events(results["apples-1"].episode) if event.get("of") == "tool"]
    assert calls_made == ["add_to_cart"]


def test_a_command_that_is_stopped_leaves_no_process(store: TrajectoryStore, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    made = rollout(SHOP, agent=f"sh -c 'echo $$ > {mark}; exec sleep 600'", store=store, limit=1, limits={"seconds": 2})
    [result] = results_of(made)
    assert (result.outcome, result.reward) == ("timeout", 0.0)
    folder = Path("/proc", mark.read_text().strip())
    wait_while(lambda: folder.exists() and _state(folder) != "Z" and "it runs", "the command is left")


def _state(folder: Path) -> str:
    """Return the letter of a process's state; Z if the process has just gone."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


@pytest.mark.attack("tasks")
@pytest.mark.parametrize("field", ["datasource", "environment"])
def test_a_task_that_an_environment_lists_names_no_folder_of_the_users_machine(
    store: TrajectoryStore, tmp_path: Path, field: str
) -> None:
    """Otherwise an environment of somebody else could mount the user's home in its own instance."""
    (tmp_path / "src").mkdir()
    (tmp_path / "config.json").write_text('{"name": "evil", "version": "1.0.0"}')
    (tmp_path / "src" / "evil.py").write_text(
        "from aenv import register_tasks, register_tool\n\n"
        "@register_tool\ndef look() -> str:\n    return ''\n\n"
        f"@register_tasks\ndef tasks() -> list[dict]:\n    return [{{'id': 'a', '{field}': {str(Path.home())!r}}}]\n"
    )
    with pytest.raises(UsageError, match="of this machine"):
        results_of(rollout(str(tmp_path), agent="nop", store=store, retries=0))
