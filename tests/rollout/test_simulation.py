"""Simulated worlds: a model answers tool calls, exactly again from a recording, and its faults are never rewards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from aenv.cli.main import main
from aenv.errors import UsageError
from aenv.rollout import (
    Episode,
    EpisodeResult,
    ModelRefused,
    ModelRequest,
    ModelUnavailable,
    Reply,
    ScriptedModel,
    calls,
    rollout,
    scripted,
)
from aenv.rollout.model import ContextExceeded
from aenv.rollout.simulation import Fidelity, Perturbations, Simulation, find_simulation, measure_fidelity
from aenv.rollout.simulation.perturbations import part_of
from aenv.rollout.simulation.simulated_state import SimulatedState
from aenv.trajectory import TrajectoryStore
from tests.conftest import run
from tests.isolation.host import Platform
from tests.rollout.conftest import results_of

LIBRARY = str(Path(__file__).parent / "library")
STATE = {"books": {"dune": "shelf", "emma": "shelf", "ulysses": "shelf"}}
LEND = ("lend", {"book": "dune", "member": "ann"})
FIND = ("find_book", {"book": "dune"})
TASK = {
    "id": "lend",
    "prompt": "Lend dune to ann.",
    "solution": [{"tool": LEND[0], "arguments": LEND[1]}],
    "reward": {"state": [{"tool": FIND[0], "arguments": FIND[1], "expected": {"value": "ann"}}]},
}


def librarian(messages: Sequence[dict[str, Any]], tools: Sequence[Any]) -> Any:
    """Play the library exactly: look up the book, and write where it is."""
    asked = json.loads(messages[1]["content"])
    tool, given = asked["tool"]["name"], asked.get("arguments", {})
    found = [json.loads(each["content"]) for each in messages if each["role"] == "tool"]
    if not found:
        return calls(("query", {"sql": f"SELECT value FROM state WHERE key = '{given['book']}'"}))
    if not found[0]:
        return calls(("result", {"error": f"no such book: {given['book']}"}))
    place = json.loads(found[0][0]["value"])
    if tool == "find_book":
        return calls(("result", {"value": place}))
    if place != "shelf":
        return calls(("result", {"error": "not possible"}))
    entry = {"collection": "books", "key": given["book"], "value": given["member"]}
    return calls(("put", entry), ("result", {"value": f"{given['book']} to {given['member']}"}))


class Failing(ScriptedModel):
    """A model that answers some requests, and then fails."""

    def __init__(self, failure: Exception, answers: int = 0) -> None:
        super().__init__(librarian)
        self._failure = failure
        self._answers = answers

    async def complete(self, request: ModelRequest) -> Reply:
        self._answers -= 1
        if self._answers < 0:
            raise self._failure
        return await super().complete(request)


def simulated(model: Any = None, **settings: Any) -> Simulation:
    return Simulation(model or ScriptedModel(librarian), state=STATE, **settings)


def lend(store: TrajectoryStore, simulation: Simulation, agent: Any = "gold", **options: Any) -> EpisodeResult:
    given: dict[str, Any] = {"tasks": [TASK], "retries": 0, "concurrency": 1, **options}
    [result] = results_of(rollout(LIBRARY, agent=agent, store=store, simulate=simulation, **given))
    return result


def seen_by(store: TrajectoryStore, result: EpisodeResult) -> bytes:
    """Return all that an episode is made of, without times and ids, as bytes."""
    dropped = ("at", "seconds", "episode", "run", "digest_of_run")
    events = [
        {name: value for name, value in event.items() if name not in dropped}
        for event in store.events(result.episode)
        if event["kind"] != "usage"
    ]
    return json.dumps(events, sort_keys=True).encode()


# --- rollouts in a simulated world


def test_a_simulated_world_is_graded_in_its_own_state_and_says_so(platform: Platform, store: TrajectoryStore) -> None:
    solved, idle = lend(store, simulated()), lend(store, simulated(), "nop")
    assert (solved.outcome, solved.score, solved.reward["simulated"]) == ("ok", 1.0, True)
    assert (idle.outcome, idle.score, idle.reward["simulated"]) == ("ok", 0.0, True)
    assert solved.simulation is not None
    assert (solved.simulation["model"], solved.simulation["fidelity"]) == ("scripted", None)
    assert solved.simulation["prompt"].startswith("sha256:")
    digests = [event["digest"] for event in store.events(solved.episode) if event["kind"] == "state"]
    assert len(digests) == 2


def test_a_recorded_run_is_repeated_byte_for_byte_without_a_model(
    platform: Platform, store: TrajectoryStore, tmp_path: Path
) -> None:
    agent = scripted([FIND, LEND, FIND, LEND, ("find_book", {"book": "no such"})])
    disturbed = Perturbations(errors=0.4, seed=3)
    first = lend(store, simulated(record=tmp_path / "answers.db", perturbations=disturbed), agent)
    down = Failing(ModelUnavailable("down"))
    again = lend(store, simulated(down, record=tmp_path / "answers.db", offline=True, perturbations=disturbed), agent)
    assert (again.outcome, again.reward) == (first.outcome, first.reward)
    assert seen_by(store, again) == seen_by(store, first)
    offline = simulated(down, record=tmp_path / "answers.db", offline=True)
    other = lend(store, offline, scripted([("lend", {"book": "emma", "member": "ann"})]))
    assert (other.outcome, other.reward) == ("infra", None)
    assert "has no answer" in other.error


def test_one_tool_is_simulated_and_the_others_are_real(platform: Platform, store: TrajectoryStore) -> None:
    seen = []

    async def agent(episode: Episode) -> None:
        seen.append((await episode.call(LEND[0], **LEND[1])).data)
        seen.append((await episode.call(FIND[0], **FIND[1])).data)

    books = {**STATE["books"], "dune": "ann"}
    task = {"id": "t", "prompt": "Lend.", "reward": {"name": "shelved", "arguments": {"books": books}}}
    result = lend(store, simulated(tools=["find_book"]), agent, tasks=[task])
    assert seen == ["dune to ann", "shelf"]  # the simulated tool does not know what the real one did
    assert result.reward == {"score": 1.0, "simulated": True}


def test_a_reward_of_the_real_instance_is_refused_where_nothing_is_real(
    platform: Platform, store: TrajectoryStore
) -> None:
    task = {"id": "t", "prompt": "Lend.", "reward": {"arguments": {"books": {}}}}
    with pytest.raises(UsageError, match="graded in the real instance"):
        lend(store, simulated(), tasks=[task])


def test_wrong_arguments_are_the_agents_and_never_reach_the_model(platform: Platform, store: TrajectoryStore) -> None:
    seen = []

    async def agent(episode: Episode) -> None:
        seen.append(await episode.call("lend", book="dune", member=7))
        seen.append(await episode.call("no_such_tool"))

    result = lend(store, simulated(Failing(ModelUnavailable("down"), answers=2)), agent)
    assert [each.fault for each in seen] == ["policy", "policy"]
    assert (result.outcome, result.score) == ("ok", 0.0)


# --- faults of the simulator


def answers_in_the_wrong_type(messages: Any, tools: Any) -> Any:
    return calls(("result", {"value": 17}))


def answers_without_a_call(messages: Any, tools: Any) -> Any:
    return "The book is on the shelf."


def reads_for_ever(messages: Any, tools: Any) -> Any:
    return calls(("query", {"sql": "SELECT 1"}))


def writes_nonsense(messages: Any, tools: Any) -> Any:
    return {"tool_calls": [{"id": "1", "type": "function", "function": {"name": "put", "arguments": "[1"}}]}


FAULTS: dict[str, Callable[[], ScriptedModel]] = {
    "down": lambda: Failing(ModelUnavailable("down")),
    "down later": lambda: Failing(ModelUnavailable("down"), answers=1),
    "too long": lambda: Failing(ContextExceeded("too long"), answers=1),
    "refused later": lambda: Failing(ModelRefused("content filter"), answers=1),
    "wrong type": lambda: ScriptedModel(answers_in_the_wrong_type),
    "no call": lambda: ScriptedModel(answers_without_a_call),
    "no end": lambda: ScriptedModel(reads_for_ever),
    "nonsense": lambda: ScriptedModel(writes_nonsense),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_simulator_is_never_a_reward(platform: Platform, store: TrajectoryStore, fault: str) -> None:
    async def careless(episode: Episode) -> None:
        try:
            await episode.call(LEND[0], **LEND[1])
        except Exception:
            episode.note("the agent goes on")

    for agent in ("gold", careless):
        result = lend(store, simulated(FAULTS[fault]()), agent)
        assert (result.outcome, result.reward, result.score, result.fault) == ("infra", None, None, "infra"), agent


def test_a_fault_of_the_simulator_while_grading_is_no_reward_either(platform: Platform, store: TrajectoryStore) -> None:
    result = lend(store, simulated(Failing(ModelUnavailable("down"), answers=2)), "gold")
    assert (result.outcome, result.reward) == ("infra", None)


def test_a_simulator_that_does_not_answer_in_time_has_failed(platform: Platform, store: TrajectoryStore) -> None:
    async def silent(messages: Any, tools: Any) -> str:
        await asyncio.Event().wait()
        return ""

    result = lend(store, simulated(ScriptedModel(silent), answer_seconds=0.01), "gold")
    assert (result.outcome, result.reward) == ("infra", None)


def test_a_model_that_refuses_the_first_request_stops_the_rollout(platform: Platform, store: TrajectoryStore) -> None:
    with pytest.raises(ModelRefused):
        lend(store, simulated(Failing(ModelRefused("wrong key"))))


# --- perturbations


def test_errors_are_seen_by_the_agent_and_not_by_the_grader(platform: Platform, store: TrajectoryStore) -> None:
    seen = []

    async def agent(episode: Episode) -> None:
        seen.append(await episode.call(LEND[0], **LEND[1]))

    result = lend(store, simulated(perturbations=Perturbations(errors=1.0)), agent)
    assert seen[0].is_error
    assert "temporarily unavailable" in seen[0].text
    assert (result.outcome, result.score) == ("ok", 0.0)
    notes = [event.get("data") for event in store.events(result.episode) if event["kind"] == "note"]
    assert {"perturbed": ["error"], "tool": "lend"} in notes


def test_the_same_seed_disturbs_the_same_calls() -> None:
    def disturbed(seed: int, episode: str) -> list[frozenset[str]]:
        chosen = Perturbations(errors=0.3, delays=0.3, partial=0.3, seed=seed)
        return [chosen.of_call(episode, number) for number in range(50)]

    assert disturbed(1, "a/0") == disturbed(1, "a/0")
    assert len({str(disturbed(1, "a/0")), str(disturbed(2, "a/0")), str(disturbed(1, "a/1"))}) == 3
    assert all(any(kind in each for each in disturbed(1, "a/0")) for kind in ("error", "delay", "partial"))
    with pytest.raises(UsageError, match="from 0 to 1"):
        Perturbations(errors=2)


def test_partial_data_keep_what_their_schema_requires() -> None:
    item = {"type": "object", "properties": {"id": {}, "note": {}}, "required": ["id"]}
    value = [{"id": number, "note": "n"} for number in range(4)]
    assert part_of(value, {"type": "array", "items": item}) == [{"id": 0}, {"id": 1}]
    assert part_of({"free": [1, 2, 3]}, None) == {"free": [1, 2]}
    assert part_of("text", {"type": "string"}) == "text"


# --- state


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM state",
        "INSERT INTO state VALUES ('a', 'b', 'c')",
        "ATTACH DATABASE '/tmp/other.db' AS other",
        "PRAGMA database_list",
        "SELECT 1; DELETE FROM state",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
        "SELECT zeroblob(100000000)",
        "SELECT",
    ],
)
def test_a_model_can_only_read_the_state_with_sql(sql: str) -> None:
    state = SimulatedState(STATE)
    with pytest.raises(ValueError, match=r"\w"):
        state.query(sql)
    assert state.entries() == STATE
    assert state.query("SELECT count(*) AS n FROM state WHERE collection = 'books'") == [{"n": 3}]
    state.close()


def test_changes_of_a_call_are_seen_in_it_and_undone_if_it_fails() -> None:
    state = SimulatedState(STATE)
    before = state.digest()
    with state.call():
        state.put("books", "dune", "ann")
        assert state.query("SELECT value FROM state WHERE key = 'dune'") == [{"value": '"ann"'}]
    assert (state.digest(), state.version) == (before, 3)
    with state.call():
        state.remove("books", "dune")
        state.keep()
    assert "dune" not in state.entries()["books"]
    with pytest.raises(ValueError, match="at most"):
        state.put("books", "long", "x" * 200_000)
    state.close()


def test_the_same_read_gives_the_same_result_until_something_changes(
    platform: Platform, store: TrajectoryStore
) -> None:
    asked = []

    def model(messages: Sequence[dict[str, Any]], tools: Any) -> Any:
        asked.append(json.loads(messages[1]["content"])["tool"]["name"])
        return librarian(messages, tools)

    result = lend(store, simulated(ScriptedModel(model)), scripted([FIND, FIND, LEND, FIND, FIND]))
    assert result.score == 1.0
    assert asked == ["find_book"] * 2 + ["lend"] * 2 + ["find_book"] * 2  # two answers for each; grading knows the last


# --- fidelity


def measured(store: TrajectoryStore, simulation: Simulation) -> Fidelity:
    """Compare a simulation with an episode of the real library."""
    agent = scripted([FIND, FIND, LEND, FIND, LEND, ("find_book", {"book": "emma"})])
    [real] = results_of(rollout(LIBRARY, tasks=[TASK], agent=agent, store=store, retries=0))
    assert real.simulation is None
    assert real.score == 1.0
    found: Fidelity = run(measure_fidelity(LIBRARY, simulation, [list(store.events(real.episode))]))
    return found


def test_an_exact_simulator_has_full_fidelity_and_results_name_it(platform: Platform, store: TrajectoryStore) -> None:
    simulation = simulated()
    found = measured(store, simulation)
    assert found == Fidelity(calls=6, failed=0, exact=1.0, format=1.0, facts=1.0, consistency=1.0, score=1.0)
    result = lend(store, simulation)
    assert result.simulation is not None
    assert result.simulation["fidelity"] == found.as_json()
    with pytest.raises(UsageError, match="no measure of reality"):
        run(measure_fidelity(LIBRARY, simulation, [list(store.events(result.episode))]))
    with pytest.raises(UsageError, match="no calls"):
        run(measure_fidelity(LIBRARY, simulation, []))


def test_a_wrong_simulator_has_low_fidelity(platform: Platform, store: TrajectoryStore) -> None:
    def wrong(messages: Sequence[dict[str, Any]], tools: Any) -> Any:
        if json.loads(messages[1]["content"])["tool"]["name"] == "lend":
            return calls(("result", {"error": "no"}))
        return calls(("result", {"value": "in the cellar"}))

    found = measured(store, simulated(ScriptedModel(wrong)))
    assert found.exact == pytest.approx(1 / 6, abs=1e-6)  # the second lend fails in reality too
    assert found.facts < 0.2
    assert found.score < 0.6
    broken = measured(store, simulated(ScriptedModel(answers_without_a_call)))
    assert (broken.failed, broken.exact, broken.score) == (6, 0.0, 0.0)


# --- settings


def test_a_simulation_is_read_from_a_file(
    platform: Platform, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text("from tests.rollout.test_simulation import librarian\n")
    (tmp_path / "tasks.json").write_text(json.dumps([TASK]))
    settings = {"model": f"{tmp_path / 'model.py'}:librarian", "state": STATE, "record": "answers.db"}
    (tmp_path / "library.json").write_text(json.dumps(settings))
    arguments = ["rollout", LIBRARY, "--tasks", str(tmp_path / "tasks.json"), "--store", str(tmp_path / "records")]
    assert main([*arguments, "--agent", "gold", "--run", "real", "-o", "json", "--no-baseline"]) == 0
    capsys.readouterr()
    chosen = ["--agent", "gold", "--simulate", str(tmp_path / "library.json"), "--reference", "real", "-o", "json"]
    assert main([*arguments, *chosen]) == 0
    shown = json.loads(capsys.readouterr().out)
    [result] = shown["results"]
    assert (result["score"], result["reward"]["simulated"], shown["do_nothing"]) == (1.0, True, 0.0)
    assert result["simulation"]["fidelity"]["score"] == 1.0
    assert (tmp_path / "answers.db").exists()
    assert main([*arguments, "--agent", "gold", "--reference", "real"]) == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "cannot be read"),
        ("{}", "needs a model"),
        ('{"model": "m", "colour": 1}', "unknown fields: colour"),
        ('{"model": "m", "perturbations": {"noise": 1}}', "not a simulation"),
        ('{"model": "m", "offline": true}', "a recording"),
        ('{"model": "m", "offline": true, "record": "none.db"}', "no recording"),
    ],
)
def test_an_invalid_file_is_rejected(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "sim.json").write_text(text)
    with pytest.raises(UsageError, match=problem):
        find_simulation(tmp_path / "sim.json")
