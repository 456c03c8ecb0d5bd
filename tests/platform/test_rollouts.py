"""Rollouts that a platform runs: streamed, idempotent, cancellable, with the rights of the caller."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from aenv.client.platform_client import ApiClient
from aenv.errors import AEnvError, Conflict, Forbidden, InvalidArguments, NotFound, RateLimited, TooLarge
from aenv.platform.access.platform_tokens import Caller
from aenv.platform.rollouts import rollout_jobs
from aenv.platform.rollouts.model_access import ModelAccess
from aenv.schema.rollouts import RolloutInfo, RolloutRequest, ServedEpisode
from tests.conftest import fetch, run
from tests.platform.conftest import publish
from tests.platform.parts import Served, serving
from tests.rollout.model_server import Answer, as_json, chat, model_server

SHOP = (Path(__file__).parents[1] / "rollout" / "shop" / "src" / "shop.py").read_text()
PAIR = [{"id": name, "instruction": f"Buy {name}.", "reward": {"arguments": {"wanted": {name: 1}}},
         "solution": [{"tool": "add_to_cart", "arguments": {"item": name}}]} for name in ("tea", "jam")]  # fmt: skip

Tokens = Callable[..., str]


@pytest.fixture(scope="module")
def platform(published: Path) -> Iterator[Served]:
    asyncio.run(publish(published, "shop", SHOP))
    with serving(published) as served:
        yield served


def client(platform: Served, token: str) -> ApiClient:
    return ApiClient(platform.url, api_key=token)


async def until(ask: Callable[[], Awaitable[int]], wanted: int) -> None:
    while await ask() != wanted:  # noqa: ASYNC110 - another process changes it
        await asyncio.sleep(0.05)


async def running(api: ApiClient, id: str) -> int:
    return (await api.rollouts.get(id)).running


async def done(api: ApiClient, id: str) -> int:
    return (await api.rollouts.get(id)).done


async def instances(api: ApiClient) -> int:
    return len((await api.page_env_instances("shop")).items)


async def collect(api: ApiClient, **fields: Any) -> list[ServedEpisode]:
    return [episode async for episode in api.rollouts.run(environment="shop@1.2.0", **fields)]


def test_episodes_are_streamed_with_their_traces(platform: Served, tokens: Tokens) -> None:
    async def main() -> None:
        async with client(platform, tokens("ann")) as api:
            episodes = await collect(api, agent="gold", tasks=PAIR, samples=2)
            assert sorted((each.task, each.sample, each.outcome, each.reward) for each in episodes) == [
                ("jam", 0, "ok", 1.0), ("jam", 1, "ok", 1.0), ("tea", 0, "ok", 1.0), ("tea", 1, "ok", 1.0)
            ]  # fmt: skip
            kinds = [event["kind"] for event in episodes[0].events or () if event["kind"] != "usage"]
            assert kinds == ["begin", "call", "result", "call", "result", "end"]
            assert [each.number for each in episodes] == [0, 1, 2, 3]
            [info] = [each for each in await api.rollouts.list() if each.total == 4]
            assert (info.state, info.done, info.outcomes, info.mean_reward) == ("done", 4, {"ok": 4}, 1.0)
            one = await api.rollouts.episode(info.id, episodes[2].episode)
            assert one.events == episodes[2].events

    run(main())


def test_a_request_that_comes_again_runs_nothing_twice(platform: Served, tokens: Tokens) -> None:
    async def main() -> None:
        async with client(platform, tokens("ann")) as api:
            first = await collect(api, agent="nop", tasks=PAIR, request_id="same", trace=False)
            again = await collect(api, agent="nop", tasks=PAIR, request_id="same", trace=False)
            assert [each.episode for each in again] == [each.episode for each in first]
            assert first[0].events is None
            with pytest.raises(Conflict, match="another rollout"):
                await collect(api, agent="gold", tasks=PAIR, request_id="same")

    run(main())


def test_two_requests_at_the_same_time_are_one_rollout(platform: Served, tokens: Tokens) -> None:
    async def main() -> None:
        async with client(platform, tokens("ann")) as api:
            both = await asyncio.gather(
                *(collect(api, agent="gold", tasks=PAIR, samples=3, request_id="both") for _ in range(4))
            )
            assert len({tuple(each.episode for each in one) for one in both}) == 1
            assert len(both[0]) == 6

    run(main())


def test_the_same_request_of_another_user_is_another_rollout(platform: Served, tokens: Tokens) -> None:
    async def main() -> None:
        async with client(platform, tokens("ann")) as ann, client(platform, tokens("bob")) as bob:
            anns = await collect(ann, agent="nop", tasks=PAIR, request_id="mine")
            bobs = await collect(bob, agent="nop", tasks=PAIR, request_id="mine")
            assert not {each.episode for each in anns} & {each.episode for each in bobs}
            [own] = await bob.rollouts.list()
            assert own.owner == "bob"
            other = next(each for each in await ann.rollouts.list())
            for refused in (bob.rollouts.get(other.id), bob.rollouts.cancel(other.id)):
                with pytest.raises(NotFound):
                    await refused
            with pytest.raises(NotFound):
                await anext(bob.rollouts.follow(other.id))

    run(main())


def test_a_model_is_asked_with_its_key_which_is_not_recorded(data: Path) -> None:
    def answer(body: dict[str, Any], number: int) -> Answer:
        bought = any(message["role"] == "tool" for message in body["messages"])
        return chat("Done.") if bought else chat(None, ("add_to_cart", {"item": "tea"}))

    asyncio.run(publish(data, "shop", SHOP))

    async def main() -> None:
        async with model_server(answer) as model:
            spec = {"name": "m", "url": model.url, "key": "the-key-of-ann", "stream": False}
            priced = {**spec, "price": {"input": 1.0, "output": 2.0}}
            with serving(data, "--model-url", model.url) as platform:
                async with client(platform, platform.token("ann")) as api:
                    [episode] = await collect(api, task=PAIR[0], model=spec, sampling={"temperature": 0.3})
                    [dear] = await collect(api, task=PAIR[0], model=priced, budget={"cost": 1e-6})
                    with pytest.raises(AEnvError, match="limit for its cost"):
                        await collect(api, task=PAIR[0], model=spec, budget={"cost": 1e-6})
            assert (episode.outcome, episode.reward, episode.steps) == ("ok", 1.0, 1)
            assert (dear.outcome, dear.budget, dear.cost) == ("timeout", "cost", pytest.approx(2e-5))
            assert episode.tokens == {"input": 20, "output": 10}
            assert model.headers[0]["authorization"] == "Bearer the-key-of-ann"
            assert model.asked[0]["temperature"] == 0.3
            assert "the-key-of-ann" not in json.dumps(episode.events)

    run(main())


def test_token_ids_and_log_probabilities_are_streamed_with_the_trace(data: Path) -> None:
    def answer(body: dict[str, Any], number: int) -> Answer:
        document = json.loads(chat("Done.").body)
        document["prompt_token_ids"] = [1, 2]
        logprobs = {"content": [{"token": "Do", "logprob": -0.5}, {"token": "ne", "logprob": -2}]}
        document["choices"][0] |= {"token_ids": [7, 8], "logprobs": logprobs}
        return as_json(document)

    asyncio.run(publish(data, "shop", SHOP))

    async def main() -> None:
        async with model_server(answer) as model:
            spec = {"name": "m", "url": model.url, "stream": False}
            with serving(data, "--model-url", model.url) as platform:
                async with client(platform, platform.token("ann")) as api:
                    [episode] = await collect(api, task=PAIR[0], model=spec, sampling={"return_token_ids": True})
        [said] = [event for event in episode.events if event.get("role") == "assistant"]
        assert (said["prompt_token_ids"], said["token_ids"], said["logprobs"]) == ([1, 2], [7, 8], [-0.5, -2])
        assert model.asked[0]["return_token_ids"] is True

    run(main())


def test_a_rollout_can_be_cancelled_and_leaves_no_instance(platform: Served, tokens: Tokens) -> None:
    task = {"id": "slow", "instruction": "x", "reward": {"arguments": {"wanted": {}}},
            "solution": [{"tool": "nap", "arguments": {"seconds": 60}}]}  # fmt: skip

    async def main() -> None:
        async with client(platform, tokens("ann")) as api:
            info = await api.rollouts.start(environment="shop@1.2.0", agent="gold", task=task, samples=3)
            await until(lambda: running(api, info.id), 3)
            await until(lambda: instances(api), 3)
            ended = await api.rollouts.cancel(info.id)
            assert (ended.state, ended.done, ended.running) == ("cancelled", 0, 0)
            await until(lambda: instances(api), 0)
            assert [each async for each in api.rollouts.follow(info.id)] == []

    run(main())


def test_a_broken_connection_continues_where_it_broke(platform: Served, tokens: Tokens) -> None:
    async def main() -> None:
        async with client(platform, tokens("ann")) as api:
            request = RolloutRequest.model_validate(
                {"environment": "shop@1.2.0", "agent": "gold", "tasks": PAIR, "samples": 2, "request_id": "broken"}
            )
            stream = api.rollouts.run(request)
            first = await anext(stream)
            await stream.aclose()  # the client goes away
            rest = [each async for each in api.rollouts.follow(rollout_jobs.job_id("ann", "broken"), first.number + 1)]
            assert [each.number for each in (first, *rest)] == [0, 1, 2, 3]

    run(main())


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"agent": "loop"}, InvalidArguments, "needs one"),
        ({"agent": "sh -c id"}, InvalidArguments, "agent"),
        ({"environment": "/etc"}, InvalidArguments, "environment"),
        ({"agent": "nop", "task": {"id": "a", "environment": "../x"}}, InvalidArguments, "not a name"),
        ({"agent": "nop", "task": {"id": "a"}, "tasks": [{"id": "b"}]}, InvalidArguments, "either task or tasks"),
        ({"agent": "nop", "tasks": "/etc/passwd"}, InvalidArguments, "tasks"),
        ({"agent": "nop", "samples": 0}, InvalidArguments, "samples"),
        ({"agent": "nop", "unknown": 1}, InvalidArguments, "unknown"),
        ({"model": {"name": "m", "url": "http://169.254.169.254/v1"}}, Forbidden, "does not call"),
        ({"model": {"name": "m", "url": "file:///etc/passwd"}}, InvalidArguments, "url"),
        ({"agent": "nop", "tasks": PAIR, "labels": {"a": "x" * 70_000}}, TooLarge, "labels"),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)
def test_a_request_that_cannot_be_served_is_refused(
    platform: Served, tokens: Tokens, fields: dict[str, Any], error: type[AEnvError], message: str
) -> None:
    body = {"environment": "shop@1.2.0", **fields}
    status, said = fetch(platform.url, "/rollouts", body, headers={"authorization": f"Bearer {tokens('ann')}"})
    assert status == (400 if error is InvalidArguments else error.status)
    assert message in said["message"]


def test_an_environment_that_does_not_exist_fails_the_rollout(platform: Served, tokens: Tokens) -> None:
    async def main() -> None:
        async with client(platform, tokens("ann")) as api:
            with pytest.raises(AEnvError, match="nowhere"):
                async for _ in api.rollouts.run(environment="nowhere@1.0.0", agent="nop", tasks=PAIR):
                    pass

    run(main())


def test_a_read_only_token_sees_rollouts_and_starts_none(platform: Served, tokens: Tokens) -> None:
    async def main() -> None:
        async with client(platform, tokens("ro", "read-only")) as api:
            assert await api.rollouts.list() == []
            with pytest.raises(Forbidden):
                await collect(api, agent="nop", tasks=PAIR)

    run(main())


def test_only_endpoints_that_the_administrator_allows_are_called() -> None:
    access = ModelAccess(["https://api.example.com/v1", "http://10.0.0.5:8000"])
    for allowed in ("https://api.example.com/v1", "https://api.example.com/v1/", "http://10.0.0.5:8000/v1"):
        access.check(allowed)
    for refused in (
        "http://api.example.com/v1",
        "https://api.example.com",
        "https://api.example.com/v11",
        "https://api.example.com:8443/v1",
        "http://10.0.0.5:80",
        "https://api.example.com.evil.example/v1",
        "https://api.example.com@evil.example/v1",
        "https://api.example.com/v1/../admin",
        "https://api.example.com/v1/..",
        "https://api.example.com/v1/%2e%2e/admin",
        "https://api.example.com/v1/..%2fadmin",
        "https://api.example.com/v1/..\\admin",
        "https://api.example.com/v1/./../admin",
        "http://[::ffff:10.0.0.5]:8000",
        "http://10.0.0.5.:8000",
        "http://167772165:8000",
    ):
        with pytest.raises(Forbidden):
            access.check(refused)
    ModelAccess([], any_endpoint=True).check("http://127.0.0.1:8000/v1")


@pytest.mark.long
def test_a_platform_that_was_restarted_continues_a_rollout(data: Path) -> None:
    asyncio.run(publish(data, "shop", SHOP))
    fields: dict[str, Any] = {"agent": "gold", "tasks": PAIR, "samples": 2, "request_id": "again"}

    async def collected(platform: Served) -> list[ServedEpisode]:
        async with client(platform, platform.token("ann")) as api:
            return await collect(api, **fields)

    with serving(data) as platform:
        first = run(collected(platform))
    with serving(data) as platform:
        second = run(collected(platform))
    assert {each.episode for each in first} == {each.episode for each in second}


@pytest.mark.long
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_client_gets_every_episode_once_although_the_platform_restarts(data: Path, end: signal.Signals) -> None:
    """Episodes end in another order than they began: a platform that has restarted numbers them in another way."""
    asyncio.run(publish(data, "shop", SHOP))
    tasks = [*PAIR, {**PAIR[0], "id": "slow", "instruction": "Buy slowly."}]
    failing, waiting = {"Buy tea."}, {"Buy slowly."}

    def answer(body: dict[str, Any], number: int) -> Answer:
        asked = body["messages"][0]["content"]
        return as_json({}, 500) if asked in failing else Answer(b"", never=True) if asked in waiting else chat("Done.")

    async def main() -> None:
        async with model_server(answer) as model, AsyncExitStack() as stack:
            options = ("--model-url", model.url)
            fields = {"tasks": tasks, "model": {"name": "m", "url": model.url, "stream": False}, "concurrency": 3}
            with serving(data, *options) as platform:
                api = await stack.enter_async_context(client(platform, platform.token("ann")))
                episodes = api.rollouts.run(environment="shop@1.2.0", request_id="all", **fields)
                got = [await anext(episodes)]
                failing.clear()
                await until(lambda: done(api, rollout_jobs.job_id("ann", "all")), 2)
                await asyncio.to_thread(platform.kill, end)
            waiting.clear()
            with serving(data, *options, "--port", platform.url.rpartition(":")[2]):
                got += [each async for each in episodes]
            assert [each.task for each in got] == ["jam", "tea", "slow"]

    run(main())


def test_what_doing_nothing_gets_stands_beside_the_result(platform: Served, tokens: Tokens) -> None:
    token = tokens("ann")
    tasks = [*PAIR, {"id": "none", "instruction": "Buy nothing.", "reward": {"arguments": {"wanted": {}}},
                     "solution": [{"tool": "add_to_cart", "arguments": {"item": "tea", "count": 0}}]}]  # fmt: skip

    async def main() -> RolloutInfo:
        async with client(platform, token) as api:
            fields = {"agent": "gold", "tasks": tasks, "samples": 2, "request_id": "floor", "baseline": True}
            assert len(await collect(api, **fields)) == 6
            return await api.rollouts.get(rollout_jobs.job_id("ann", "floor"))

    info = run(main())
    assert (info.done, info.do_nothing) == (6, pytest.approx(1 / 3))
    command = ["trajectory", "stats", "--run", info.id, "--store", platform.url, "--output", "json"]
    shown = subprocess.run(
        [sys.executable, "-m", "aenv.cli", *command],
        env={**os.environ, "AENV_API_KEY": token}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert json.loads(shown.stdout)["do_nothing"] == pytest.approx(1 / 3)


def test_a_client_is_told_that_its_rollout_was_cancelled(platform: Served, tokens: Tokens) -> None:
    task = {"id": "slow", "instruction": "x", "solution": [{"tool": "nap", "arguments": {"seconds": 60}}]}

    async def main() -> None:
        async with client(platform, tokens("ann")) as api:
            episodes = asyncio.ensure_future(collect(api, agent="gold", task=task, request_id="stopped"))
            id = rollout_jobs.job_id("ann", "stopped")
            await until(lambda: instances(api), 1)
            await api.rollouts.cancel(id)
            with pytest.raises(AEnvError, match="cancelled after 0 of 1 episodes"):
                await episodes

    run(main())


def test_a_caller_has_a_limited_number_of_rollouts(platform: Served, tokens: Tokens) -> None:
    task = {"id": "slow", "instruction": "x", "solution": [{"tool": "nap", "arguments": {"seconds": 600}}]}

    async def main() -> None:
        async with client(platform, tokens("carl")) as api:
            made: list[RolloutInfo] = []
            fields = {"environment": "shop@1.2.0", "agent": "gold", "task": task}
            try:
                for _ in range(rollout_jobs.PER_CALLER):
                    made.append(await api.rollouts.start(**fields))
                with pytest.raises(RateLimited, match="at most 32"):
                    await api.rollouts.start(**fields)
            finally:
                await asyncio.gather(*(api.rollouts.cancel(each.id) for each in made))

    run(main())


BIG = """
from aenv import register_reward, register_tool


@register_tool
def look() -> str:
    return ""


@register_reward
def reward() -> dict:
    return {"reward": 0.5, "text": "x" * 500_000}
"""


def test_a_large_reward_is_served_whole(platform: Served, tokens: Tokens) -> None:
    asyncio.run(publish(platform.data, "big", BIG))

    async def main() -> None:
        async with client(platform, tokens("ann")) as api:
            tasks = [{"id": "a", "instruction": "x"}]
            [episode] = [each async for each in api.rollouts.run(environment="big@1.2.0", agent="nop", tasks=tasks)]
            assert (episode.score, len(episode.reward["text"])) == (0.5, 500_000)

    run(main())


@pytest.mark.attack("rollouts")
@pytest.mark.parametrize("position", ["\u00b2", "9" * 5000, "-1", "a"])
def test_a_strange_position_in_the_stream_is_no_failure_of_the_platform(
    platform: Served, tokens: Tokens, position: str
) -> None:
    headers = {"authorization": f"Bearer {tokens('ann')}"}
    body = {"environment": "shop@1.2.0", "agent": "nop", "tasks": PAIR, "request_id": "position"}
    fetch(platform.url, "/rollouts?stream=false", body, headers=headers)
    id = rollout_jobs.job_id("ann", "position")
    url = urllib.request.Request(f"{platform.url}/rollouts/{id}/stream?trace=0")
    for name, value in {**headers, "last-event-id": position}.items():
        url.add_header(name, value)
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert answer.read().endswith(b"\n\n")


@pytest.mark.attack("rollouts")
def test_finished_rollouts_of_a_caller_do_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_jobs, "ENDED_PER_CALLER", 5)
    twice = {"environment": "shop", "agent": "nop", "tasks": [PAIR[0], PAIR[0]]}

    async def main() -> None:
        jobs = rollout_jobs.RolloutJobs(tmp_path, "unix:/nowhere.sock", ModelAccess([]))
        for _ in range(20):
            job = jobs.start(RolloutRequest.model_validate(twice), Caller("ann", "user"), None)
            assert [each async for each in job.follow(0)] == []
            assert (job.state, job.request.tasks) == ("failed", None)
        assert len(jobs.of(Caller("ann", "user"))) == 5
        await jobs.close()

    run(main())


@pytest.mark.attack("rollouts")
def test_the_tasks_of_running_rollouts_are_limited_together(tmp_path: Path) -> None:
    request = RolloutRequest.model_validate({"environment": "shop", "agent": "nop", "tasks": PAIR})

    async def main() -> None:
        jobs = rollout_jobs.RolloutJobs(tmp_path, "unix:/nowhere.sock", ModelAccess([]))
        jobs.start(request, Caller("ann", "user"), None, rollout_jobs.MOST_WAITING - 5)
        with pytest.raises(RateLimited, match="128 MiB"):
            jobs.start(request, Caller("ann", "user"), None, 6)
        jobs.start(request, Caller("bob", "user"), None, 6)
        await jobs.close()

    run(main())


LONG = """
import base64, os
from aenv import register_reward, register_tool

@register_tool
def look(size: int) -> str:
    return base64.b64encode(os.urandom(size)).decode()

@register_tool
def stare(size: int) -> str:
    return "x" * size

@register_reward
def reward() -> float:
    return 1.0
"""


def looks(tool: str, size: int, steps: int = 1) -> dict[str, Any]:
    step = {"tool": tool, "arguments": {"size": size}}
    return {"id": "a", "instruction": "x", "solution": [step] * steps}


@pytest.mark.long
@pytest.mark.attack("rollouts")
def test_long_results_of_tools_do_not_fill_the_memory_of_the_platform(data: Path) -> None:
    asyncio.run(publish(data, "long", LONG))

    async def episode_of(served: Served) -> str:
        async with client(served, served.token("ann")) as api:
            fields: dict[str, Any] = {"environment": "long@1.2.0", "agent": "gold", "request_id": "long"}
            tasks = [looks("stare", 10_000_000, 20)]
            [episode] = [each async for each in api.rollouts.run(**fields, tasks=tasks, trace=False)]
            return episode.episode

    with serving(data) as served:
        episode, token = run(episode_of(served)), served.token("ann")
        url = f"{served.url}/rollouts/{rollout_jobs.job_id('ann', 'long')}"
        for path in ("/stream", f"/episodes/{episode}"):
            assert read_all(f"{url}{path}", token) > 200_000_000
        assert 0 < read_all(f"{served.url}/trajectories/{episode}/events?limit=1000", token) < 30_000_000
        peak = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{served.process.pid}/status").read_text())
        assert peak is not None
        assert int(peak[1]) < 500_000


def read_all(url: str, token: str) -> int:
    """Read a response, and return how many bytes it has."""
    size = 0
    asked = urllib.request.Request(url, headers={"authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked, timeout=120) as answer:
        while piece := answer.read(1 << 20):
            size += len(piece)
    return size


@pytest.mark.long
@pytest.mark.attack("rollouts")
def test_a_rollout_ends_when_its_owner_has_no_space_left(data: Path) -> None:
    asyncio.run(publish(data, "long", LONG))

    async def main(served: Served) -> None:
        async with client(served, served.token("ann")) as api:
            fields: dict[str, Any] = {"environment": "long@1.2.0", "agent": "gold", "tasks": [looks("look", 300_000)]}
            with pytest.raises(AEnvError, match="trajectories"):
                async for _ in api.rollouts.run(**fields, samples=1024, trace=False):
                    pass
            [info] = await api.rollouts.list()
            assert (info.state, info.done < 1024) == ("failed", True)

    with serving(data, "--trajectory-quota", "1Mi") as served:
        run(main(served))
