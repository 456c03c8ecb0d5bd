"""Each fault ends in its own outcome, and a reward is there only where it says something about the agent."""

from __future__ import annotations

import asyncio
import errno
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aenv.errors import StorageFull, UsageError
from aenv.rollout import (
    Episode,
    EpisodeResult,
    ModelEndpoint,
    ModelRefused,
    Price,
    ScriptedModel,
    TaskSet,
    ToolLoop,
    rollout,
    scripted,
)
from aenv.trajectory import TrajectoryStore
from tests.conftest import run
from tests.isolation.host import Platform
from tests.rollout.conftest import SHOP, instances_in_use, results_of, shopping
from tests.rollout.model_server import Answer, as_events, as_json, chat, model_server
from tests.waiting import wait_while

BUY = ("add_to_cart", {"item": "apple"})
ASKS = """
import os, urllib.request
url, body = os.environ["OPENAI_BASE_URL"] + "/chat/completions", b'{"model": "m", "messages": []}'
urllib.request.urlopen(urllib.request.Request(url, body, {"content-type": "application/json"}))
"""
COMMAND = shlex.join([sys.executable, "-c", ASKS])

pytestmark = pytest.mark.usefixtures("platform")


def test_a_solved_task_is_ok(store: TrajectoryStore) -> None:
    [result] = shopping(scripted([BUY]), store)
    assert (result.outcome, result.reward, result.steps) == ("ok", 1.0, 1)


def test_doing_nothing_is_ok_with_the_reward_that_it_gets(store: TrajectoryStore) -> None:
    [result] = shopping("nop", store)
    assert (result.outcome, result.reward) == ("ok", 0.0)


def test_a_tool_that_raises_is_a_result_for_the_agent(store: TrajectoryStore) -> None:
    seen = []

    async def agent(episode: Episode) -> None:
        seen.append(await episode.call("fail"))
        await episode.call(*BUY[:1], **BUY[1])

    [result] = shopping(agent, store)
    assert (result.outcome, result.reward) == ("ok", 1.0)
    assert (seen[0].is_error, seen[0].fault) == (True, "env")


def test_wrong_arguments_and_invalid_json_are_results_for_the_agent(store: TrajectoryStore) -> None:
    seen = []

    async def agent(episode: Episode) -> None:
        seen.append(await episode.call("add_to_cart", item="apple", count="many"))
        seen.append(await episode.call_tool("add_to_cart", '{"item": "app'))
        seen.append(await episode.call("no_such_tool"))

    [result] = shopping(agent, store)
    assert result.outcome == "ok"
    assert [each.fault for each in seen] == ["policy"] * 3


def test_an_agent_that_raises_is_graded_on_the_state_reached(store: TrajectoryStore) -> None:
    async def agent(episode: Episode) -> None:
        await episode.call(*BUY[:1], **BUY[1])
        raise ValueError("lost the thread")

    [result] = shopping(agent, store)
    assert (result.outcome, result.reward, result.error) == ("policy", 1.0, "ValueError: lost the thread")


@pytest.mark.parametrize(
    ("limits", "budget"), [({"steps": 2}, "steps"), ({"seconds": 0.3}, "seconds"), ({"tokens": 40}, "tokens")]
)
def test_a_spent_budget_is_graded_on_the_state_reached(
    store: TrajectoryStore, limits: dict[str, Any], budget: str
) -> None:
    async def agent(episode: Episode) -> None:
        await episode.call(*BUY[:1], **BUY[1])
        while True:
            await episode.ask([{"role": "user", "content": "go on " * 5}])
            await (episode.call("add_to_cart", item="apple", count=0) if budget == "steps" else asyncio.sleep(0.01))

    [result] = shopping(agent, store, limits=limits, model=ScriptedModel(lambda messages, tools: "yes"))
    assert (result.outcome, result.budget, result.reward) == ("timeout", budget, 1.0)


def test_a_deadline_during_a_tool_call_is_a_timeout(store: TrajectoryStore) -> None:
    [result] = shopping(scripted([BUY, ("nap", {"seconds": 30})]), store, limits={"seconds": 0.5})
    assert (result.outcome, result.budget, result.reward) == ("timeout", "seconds", 1.0)


def test_an_agent_that_ignores_cancellation_does_not_hold_up_its_episode(
    store: TrajectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aenv.rollout.attempt.STOP_SECONDS", 0.1)
    release = asyncio.Event()

    async def agent(episode: Episode) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async def main() -> list[EpisodeResult]:
        made = rollout(
            SHOP, agent=agent, store=store, limits={"seconds": 0.1}, tasks=[{"id": "a", "reward": _WANTED}], retries=0
        )
        found = [result async for result in made.results()]
        release.set()
        await asyncio.sleep(0)
        return found

    [result] = run(main())
    assert (result.outcome, result.reward) == ("timeout", 0.0)


def test_a_destroyed_state_gets_the_failure_reward(store: TrajectoryStore) -> None:
    [result] = shopping(scripted([("destroy", {})]), store)
    assert (result.outcome, result.reward) == ("policy", 0.0)
    assert result.failure_reason is not None
    assert "burnt the cart" in result.failure_reason


def test_a_reward_that_raises_is_absent(store: TrajectoryStore) -> None:
    [result] = shopping(scripted([("break_reward", {})]), store)
    assert (result.outcome, result.reward, result.score) == ("env", None, None)


def test_wrong_arguments_of_one_tasks_reward_leave_it_without_a_reward(store: TrajectoryStore) -> None:
    [result] = shopping("nop", store, tasks=[{"id": "a"}])
    assert (result.outcome, result.reward, result.error) == (
        "env",
        None,
        "arguments of the task's reward: wanted: missing",
    )


def test_an_instance_that_the_environments_code_ends_is_its_fault(store: TrajectoryStore) -> None:
    [result] = shopping(scripted([("leave", {})]), store)
    assert (result.outcome, result.reward) == ("env", None)


def test_a_setup_that_raises_is_the_environments_fault(store: TrajectoryStore) -> None:
    task = {"id": "a", "setup": {"function": "start", "arguments": {"fails": True}}, "reward": _WANTED}
    [result] = shopping("nop", store, tasks=[task])
    assert (result.outcome, result.reward) == ("env", None)


def test_a_simulated_user_that_fails_is_the_users_fault(store: TrajectoryStore) -> None:
    [result] = shopping(scripted([BUY, ("ask_user", {"question": "why?"})]), store)
    assert (result.outcome, result.reward, result.fault) == ("user", None, "user")


def test_a_killed_instance_is_an_infra_fault_and_is_retried_in_another(
    store: TrajectoryStore, platform: Platform
) -> None:
    seen = []

    async def agent(episode: Episode) -> None:
        seen.append((episode.id, await episode.env.call_function("pid")))
        if len(seen) == 1:
            for instance in platform.instances():
                instance.kill()
        await episode.call(*BUY[:1], **BUY[1])

    [result] = shopping(agent, store, retries=8, concurrency=1)  # a pooled instance that was killed may come next
    assert (result.outcome, result.reward) == ("ok", 1.0)
    *failed, last = sorted(store.episodes(result.run), key=lambda episode: episode.attempt)
    assert {(each.outcome, each.reward, each.final) for each in failed} == {("infra", None, False)}
    assert (last.final, last.parents) == (True, ({"kind": "retry", "episode": failed[-1].id},))


def test_an_infra_fault_that_stays_has_no_reward_and_is_tried_so_often(
    store: TrajectoryStore, platform: Platform
) -> None:
    async def agent(episode: Episode) -> None:
        for instance in platform.instances():
            instance.kill()
        await episode.call(*BUY[:1], **BUY[1])

    [result] = shopping(agent, store, retries=1, concurrency=1)
    assert (result.outcome, result.reward, result.score, result.attempt) == ("infra", None, None, 1)
    assert [episode.final for episode in store.all_episodes(result.run)].count(True) == 1


def test_a_full_disk_stops_the_rollout_and_invents_nothing(
    store: TrajectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if b'"kind":"result"' in data:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StorageFull):
            shopping(scripted([BUY]), store, run="r")
    assert store.finished("r") == set()
    [result] = shopping(scripted([BUY]), store, run="r")
    assert (result.outcome, result.reward) == ("ok", 1.0)


def test_a_wrong_environment_stops_the_rollout(store: TrajectoryStore) -> None:
    from aenv.errors import AEnvError

    with pytest.raises(AEnvError):
        results_of(rollout("no-such-environment@9.9.9", agent="nop", tasks=[{"id": "a"}], store=store))


def test_a_score_that_the_reward_does_not_have_stops_the_rollout(store: TrajectoryStore, tmp_path: Path) -> None:
    env = tmp_path / "graded.py"
    env.write_text(
        "from aenv import register_reward, register_tasks\n"
        "@register_reward\ndef graded(): return {'score': 1.0, 'speed': 2.0}\n"
        "@register_tasks\ndef tasks(): yield {'id': 'one', 'instruction': 'Do nothing.'}\n"
    )
    [result] = results_of(rollout(str(env), agent="nop", score="speed", store=store))
    assert result.score == 2.0
    with pytest.raises(UsageError, match="the reward has no 'scroe', which is to be its score; it has score, speed"):
        results_of(rollout(str(env), agent="nop", score="scroe", store=store))


@pytest.mark.parametrize(("agent", "lacks"), [("loop", "the rollout has none"), ("gold", "has no solution")])
def test_an_agent_that_lacks_a_model_or_a_solution_stops_the_rollout(
    store: TrajectoryStore, agent: str, lacks: str
) -> None:
    with pytest.raises(UsageError, match=lacks):
        shopping(agent, store, run="lacks")
    assert store.finished("lacks") == set()


def test_an_agent_that_is_no_coroutine_function_stops_the_rollout(store: TrajectoryStore) -> None:
    """It never worked, so that nothing of it can be graded: its episodes are neither failures nor results."""

    def plain(episode: Episode) -> None:
        return

    async def no_argument() -> None:
        return

    with pytest.raises(UsageError, match="the agent plain is not a coroutine function"):
        shopping(plain, store)
    assert [episode.outcome for episode in store.all_episodes()] == ["cancelled"]
    with pytest.raises(UsageError, match="the agent no_argument cannot be called with an episode"):
        shopping(no_argument, store)


def test_an_agent_that_fails_before_it_awaits_is_graded(store: TrajectoryStore) -> None:
    def agent(episode: Episode) -> Any:
        raise RuntimeError("a bug")

    [result] = shopping(agent, store)
    assert (result.outcome, result.reward) == ("policy", 0.0)


def test_an_instance_that_the_agent_ends_gets_the_failure_reward(store: TrajectoryStore) -> None:
    [result] = shopping(scripted([BUY, ("end_by_signal", {})]), store)
    assert (result.outcome, result.reward) == ("policy", 0.0), result
    assert result.failure_reason


def test_an_environment_without_a_reward_has_none(store: TrajectoryStore) -> None:
    class NoReward(TaskSet):
        """Opens worlds that declare no reward."""

        def open(self, task: Any) -> Any:
            return _without_reward(super().open(task))

    [result] = results_of(rollout(agent="nop", tasks=NoReward([{"id": "a"}], SHOP), store=store))
    assert (result.outcome, result.reward) == ("ok", None)


def test_leaving_the_loop_stops_what_runs_and_records_it_as_cancelled(
    store: TrajectoryStore, platform: Platform
) -> None:
    async def agent(episode: Episode) -> None:
        if episode.sample:
            await asyncio.Event().wait()

    async def main() -> str:
        made = rollout(
            SHOP, agent=agent, tasks=[{"id": "a", "reward": _WANTED}], samples=3, concurrency=3, store=store, retries=0
        )
        results = made.results()
        async for result in results:
            assert result.sample == 0
            break
        await results.aclose()
        return made.run

    name = run(main())
    assert store.finished(name) == {("a", 0)}
    wait_while(lambda: instances_in_use(platform), "instances are left")
    store.close()
    with TrajectoryStore.open(store.path) as again:
        ended = {episode.outcome for episode in again.episodes(name)}
    assert ended <= {"ok", "cancelled", None}


_WANTED = {"arguments": {"wanted": {"apple": 1}}}


def _without_reward(world: Any) -> Any:
    from aenv.errors import NotFound

    async def call_reward(*arguments: Any, **named: Any) -> None:
        raise NotFound("this environment declares no reward")

    world.call_reward = call_reward
    return world


# --- faults of the model

BAD_MODELS: dict[str, tuple[Callable[[], Answer], str, float | None]] = {
    "429": (lambda: as_json({"error": "full"}, 429, retry_after="0"), "infra", None),
    "500": (lambda: as_json({"error": "oops"}, 500), "infra", None),
    "cut stream": (lambda: as_events([{"choices": [{"delta": {"content": "I"}}]}], done=False), "infra", None),
    "invalid JSON": (lambda: Answer(b'{"choices'), "infra", None),
    "slow": (lambda: Answer(b"", never=True), "timeout", 1.0),
    "too long": (lambda: as_json({"error": {"message": "maximum context length is 9"}}, 400), "timeout", 1.0),
}


@pytest.mark.parametrize("fault", BAD_MODELS)
def test_a_fault_of_the_model_has_its_outcome(
    store: TrajectoryStore, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr("aenv.rollout.endpoint.FIRST_PAUSE", 0.0)
    bad, outcome, reward = BAD_MODELS[fault]

    async def main() -> list[EpisodeResult]:
        async with model_server(lambda body, number: bad() if number else chat(None, BUY)) as server:
            model = ModelEndpoint("m", server.url, retries=2)
            task = {"id": "a", "prompt": "Buy 1 apple.", "reward": _WANTED, "limits": {"seconds": 3}}
            made = rollout(SHOP, tasks=[task], model=model, store=store, retries=0)
            return [result async for result in made.results()]

    [result] = run(main())
    assert (result.outcome, result.reward) == (outcome, reward)
    assert result.budget == {"slow": "seconds", "too long": "context"}.get(fault)


def test_a_failure_of_the_model_that_passes_is_noted_and_no_more(
    store: TrajectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aenv.rollout.endpoint.FIRST_PAUSE", 0.0)
    answers = [as_json({"error": "full"}, 429), chat(None, BUY), as_json({"error": "oops"}, 503), chat("Done.")]

    async def main() -> list[EpisodeResult]:
        async with model_server(lambda body, number: answers[number]) as server:
            task = {"id": "a", "prompt": "Buy 1 apple.", "reward": _WANTED}
            model = ModelEndpoint("m", server.url)
            return [result async for result in rollout(SHOP, tasks=[task], model=model, store=store).results()]

    [result] = run(main())
    assert (result.outcome, result.reward, result.tokens) == ("ok", 1.0, {"input": 20, "output": 10})
    notes = [event["data"]["model_retry"] for event in store.events(result.episode) if event["kind"] == "note"]
    assert notes == ["429", "503"]


def test_arguments_that_are_no_json_are_read_by_the_model(store: TrajectoryStore) -> None:
    async def main() -> tuple[list[EpisodeResult], list[dict[str, Any]]]:
        answers = [chat(None, ("add_to_cart", '{"item": "app')), chat(None, BUY), chat("Done.")]
        async with model_server(lambda body, number: answers[number]) as server:
            task = {"id": "a", "prompt": "Buy 1 apple.", "reward": _WANTED}
            made = rollout(SHOP, tasks=[task], model=ModelEndpoint("m", server.url), store=store)
            return [result async for result in made.results()], server.asked

    [result], asked = run(main())
    assert (result.outcome, result.reward) == ("ok", 1.0)
    assert "not valid JSON" in asked[1]["messages"][-1]["content"]


def test_a_model_that_refuses_the_key_stops_the_rollout(store: TrajectoryStore) -> None:
    async def main() -> None:
        async with model_server(lambda body, number: as_json({"error": "wrong key"}, 401)) as server:
            made = rollout(SHOP, model=ModelEndpoint("m", server.url), store=store, run="refused")
            async for _ in made.results():
                raise AssertionError("there is no result")

    with pytest.raises(ModelRefused, match="wrong key"):
        run(main())
    assert store.finished("refused") == set()


def test_the_cost_budget_counts_the_price_of_tokens(store: TrajectoryStore) -> None:
    async def main() -> list[EpisodeResult]:
        async with model_server(lambda body, number: chat(None, BUY)) as server:
            task = {"id": "a", "prompt": "Buy 1 apple.", "reward": _WANTED, "limits": {"cost": 5e-5}}
            made = rollout(
                SHOP, tasks=[task], model=ModelEndpoint("m", server.url), price=Price(1.0, 2.0), store=store, retries=0
            )
            return [result async for result in made.results()]

    [result] = run(main())
    assert (result.outcome, result.budget, result.steps) == ("timeout", "cost", 3)
    assert result.cost == pytest.approx(6e-5)


@pytest.mark.parametrize("agent", ["loop", COMMAND], ids=["loop", "command"])
def test_a_limit_for_a_cost_that_nobody_knows_stops_the_rollout(store: TrajectoryStore, agent: str) -> None:
    async def main() -> None:
        async with model_server(lambda body, number: chat("Done.")) as server:
            made = rollout(
                SHOP, agent=agent, model=ModelEndpoint("m", server.url), limits={"cost": 1.0}, store=store, limit=1
            )
            with pytest.raises(UsageError, match="limit for its cost"):
                [result async for result in made.results()]

    run(main())


@pytest.mark.parametrize("price", [(-1.0, 1.0), (1.0, float("nan"))])
def test_an_invalid_price_is_refused(price: tuple[float, float]) -> None:
    with pytest.raises(UsageError, match="invalid price"):
        Price(*price)


def test_parallel_calls_and_a_long_conversation_are_handled_by_the_loop(store: TrajectoryStore) -> None:
    asked: list[dict[str, Any]] = []

    def answer(body: dict[str, Any], number: int) -> Answer:
        asked.append(body)
        wait = ("nap", {"seconds": 0})
        return chat(None, wait, wait, usage=(100, 10)) if number < 4 else chat("Done.")

    async def main() -> list[EpisodeResult]:
        async with model_server(answer) as server:
            agent = ToolLoop("Be brief.", parallel=True, context_tokens=100, keep_results=2)
            made = rollout(
                SHOP, agent=agent, tasks=[{"id": "a", "prompt": "Wait." * 50, "reward": _WANTED}],
                model=ModelEndpoint("m", server.url), store=store,
            )  # fmt: skip
            return [result async for result in made.results()]

    [result] = run(main())
    assert (result.outcome, result.steps) == ("ok", 8)
    assert asked[0]["messages"][0] == {"role": "system", "content": "Be brief."}
