"""TAU2-Bench in real sandboxes, where it is installed: with models for the user and the judge that are scripts."""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aenv import Environment
from aenv.cli.commands.evaluate.bench import command
from aenv.client import local_lease
from aenv.errors import UserFailed
from aenv.rollout import EpisodeResult, rollout
from aenv.rollout.agents.scripted import scripted
from tests.conftest import run
from tests.scripted_model import ScriptedModel, literal_judge, scripted_model, tool_call

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tau2_bench_data") is None,
    reason="TAU2-Bench is not installed here: AENV_TAU2_SOURCE=CHECKOUT python envs/tau2-env/install.py",
)
SECRET = "sk-do-not-show-7d1f"


def opened(model: ScriptedModel, **variables: str) -> Environment:
    endpoint = {"TAU2_USER_LLM_API_BASE": model.url, "TAU2_USER_LLM_API_KEY": SECRET}
    return Environment("tau2-env@1.0.0", environment_variables={**endpoint, **variables}, startup_timeout=300.0)


def customer(messages: list[dict[str, Any]]) -> Any:
    """A user of the mock domain: wants a task done, looks at what came for them, and hangs up when told that it is."""
    spoken = [message for message in messages if message["role"] == "assistant"]
    heard = str(messages[-1]["content"])
    if not spoken:
        return "Please have task_1 marked as completed."
    if "completed" in heard:
        return "Thank you. ###STOP###"
    return tool_call("check_notifications", {"user_id": "user_1"}) if messages[-1]["role"] == "user" else "I see it."


async def shown_of(env: Environment) -> list[Any]:
    """All that anybody is shown of an instance."""
    status = await env.call_function("tau2_get_status", {})
    about = (await env.call_tool("tau2_get_task_info", {})).data
    return [status, about, await env.get_env_info(), repr(env), await env.logs()]


def test_a_whole_conversation_with_a_model_is_graded_and_its_key_is_not_shown(platform: local_lease.LocalPaths) -> None:
    async def main() -> None:
        task = {"TAU2_DOMAIN": "mock", "TAU2_TASK_ID": "update_task_1", "TAU2_SOLO_MODE": "false"}
        async with opened(model, TAU2_USER_LLM="openai/customer", **task) as env:
            status = await env.call_function("tau2_get_status", {})
            assert "Please have task_1 marked" in status["last_observation"]
            assert status["environment"]["user"] == "model"
            asked = await env.call_tool("tau2_send_message", {"message": "Which task is it?"})
            assert "check_notifications" in asked.data["observation"]
            await env.call_tool("update_task_status", {"task_id": "task_1", "status": "completed"})
            last = await env.call_tool("tau2_send_message", {"message": "It is completed."})
            assert (last.data["done"], last.data["reward"]) == (True, 1.0)
            reward = await env.call_reward({})
            assert (reward["total_reward"], reward["do_nothing_reward"]) == (1.0, 0.0)
            shown = [asked.data, last.data, reward, *await shown_of(env)]
            assert SECRET not in json.dumps(shown, default=str)

    with scripted_model(customer) as model:
        run(main())
        assert model.keys == {SECRET}
        assert len(model.asked) == 4, "doing nothing, for comparison, needs no model"
    assert SECRET not in platform.log.read_text()


def test_a_model_that_refuses_the_key_is_an_error_that_does_not_show_it() -> None:
    async def main() -> None:
        task = {"TAU2_DOMAIN": "mock", "TAU2_TASK_ID": "update_task_1", "TAU2_SOLO_MODE": "false"}
        async with opened(model, TAU2_USER_LLM="openai/customer", **task) as env:
            with pytest.raises(UserFailed, match=r"could not go on.*Incorrect API key provided: \*\*\*") as failed:
                await env.call_function("tau2_get_status", {})
            with pytest.raises(UserFailed, match="could not go on"):
                await env.call_function("tau2_done", {})
            with pytest.raises(Exception, match="could not go on"):
                await env.call_reward({})
            log = await env.logs()
            assert "Incorrect API key provided: ***" in log
            assert SECRET not in f"{failed.value!r} {failed.value.details} {log}"

    with scripted_model(customer) as model:
        model.refuses = True
        run(main())
        assert SECRET in model.keys


def test_an_episode_whose_users_model_fails_has_the_outcome_user_and_no_reward(tmp_path: Path) -> None:
    async def main(url: str) -> list[EpisodeResult]:
        variables = {
            "TAU2_DOMAIN": "mock", "TAU2_TASK_ID": "update_task_1", "TAU2_SOLO_MODE": "false",
            "TAU2_USER_LLM": "openai/customer", "TAU2_USER_LLM_API_BASE": url, "TAU2_USER_LLM_API_KEY": SECRET,
        }  # fmt: skip
        agent = scripted([("tau2_send_message", {"message": "How can I help?"})])
        tasks = [{"id": "update", "instruction": "Serve the customer.", "variables": variables}]
        made = rollout("tau2-env@1.0.0", agent=agent, tasks=tasks, store=tmp_path, retries=0, startup_timeout=300.0)
        return [result async for result in made.results()]

    with scripted_model(customer) as model:
        model.refuses = True
        [result] = run(main(model.url))
    assert (result.outcome, result.reward, result.score) == ("user", None, None)
    assert "could not go on" in result.error
    assert SECRET not in result.error


def bench(folder: Path, agent: str, *options: str) -> dict[str, Any]:
    words = [word for option in options for word in ("-O", option)]
    done = CliRunner().invoke(command, ["run", "tau2", "--agent", agent, "--run", str(folder), "-o", "json", *words])
    assert done.exit_code == 0, done.output
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


@pytest.mark.timeout(600)  # three runs of the benchmark
def test_solutions_earn_one_mistakes_do_not_and_a_judge_hears_what_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted_model(literal_judge) as model:
        monkeypatch.setenv("TAU2_JUDGE_LLM_API_BASE", model.url)
        monkeypatch.setenv("TAU2_JUDGE_LLM_API_KEY", SECRET)
        chosen = ("domain=retail", "tasks=2,24", "judge=openai/judge")
        for agent, earned in (("gold", 1.0), ("wrong", 0.0), ("nop", 0.0)):
            summary = bench(tmp_path / agent, agent, *chosen)
            assert (summary["mean_reward"], summary["do_nothing"], summary["graded"]) == (earned, 0.0, 2)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    left = [gzip.decompress(data) if (data := path.read_bytes())[:2] == b"\x1f\x8b" else data for path in files]
    assert left
    assert not any(SECRET.encode() in data for data in left)


def test_doing_nothing_is_shown_beside_a_result(tmp_path: Path) -> None:
    summary = bench(tmp_path / "gold", "gold", "domain=airline", "tasks=0,8")
    assert (summary["mean_reward"], summary["do_nothing"]) == (1.0, 0.5)
