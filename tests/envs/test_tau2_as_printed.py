"""Code for tau2-env that users already have runs unchanged: with the benchmark, and, where that is not installed, with
an environment that has the same functions."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import warnings
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import agents
import pytest

from aenv import Environment
from aenv.testing import running
from tests.scripted_model import ScriptedModel, scripted_model, tool_call
from tests.tau2_stand_in import ENV, servant
from tests.usage.documents import PRINTED

SECONDS = 300
AIRLINE = {"TAU2_DOMAIN": "airline", "TAU2_TASK_ID": "1"}


@dataclass
class Stage:
    """Where the code is run, and the model that plays."""

    model: ScriptedModel
    is_real: bool


def passenger_service(messages: list[dict[str, Any]]) -> Any:
    """An agent for task 1 of the airline domain: looks the user up, says no, and is done."""
    if messages[-1]["role"] == "tool":
        return "I am sorry, it cannot be cancelled."
    if "go ahead" in str(messages[-1]["content"]):
        return tool_call("done", {})
    return tool_call("get_user_details", {"user_id": "raj_sanchez_7340"})


@pytest.fixture(params=["stand-in", "benchmark"])
def stage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    is_real = request.param == "benchmark"
    if is_real and importlib.util.find_spec("tau2_bench_data") is None:
        pytest.skip("TAU2-Bench is not installed here: AENV_TAU2_SOURCE=CHECKOUT python envs/tau2-env/install.py")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    agents.set_default_openai_api("chat_completions")
    agents.set_tracing_disabled(True)
    with scripted_model(passenger_service if is_real else servant) as model:
        monkeypatch.setenv("OPENAI_BASE_URL", model.url)
        if is_real:
            yield Stage(model, True)
        else:
            (tmp_path / "env.py").write_text(ENV)
            with running(tmp_path / "env.py", log=tmp_path / "log") as env:
                monkeypatch.setenv("DUMMY_INSTANCE_IP", env.url)
                yield Stage(model, False)
    agents.set_default_openai_api("responses")


def execute(code: str, **names: Any) -> dict[str, Any]:
    """Run it as a notebook does, with ``await`` outside of functions; the variables at its end."""
    compiled = compile(code, "as printed", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def main() -> None:
        async with asyncio.timeout(SECONDS):
            work = eval(compiled, names)
            if work is not None:
                await cast("Coroutine[Any, Any, None]", work)
        if isinstance(names.get("env"), Environment):
            await names["env"].release()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main())
    return names


def test_the_announced_loop_earns_a_reward(stage: Stage) -> None:
    """Repair: the import of Runner."""
    code = PRINTED["a loop"].code
    assert "instructions=env.call_function(" in code, "without an await"
    seen = execute(code, Runner=agents.Runner)
    assert seen["reward"]["total_reward"] == 1.0
    assert seen["reward"]["done"] is True
    (prompt,) = {asked["messages"][0]["content"] for asked in stage.model.asked}
    assert ("# Airline Agent Policy" if stage.is_real else "Serve the customer.") in prompt


def test_the_announced_questions_are_answered(stage: Stage) -> None:
    seen = execute(PRINTED["questions to a benchmark"].code)
    names = [tool["name"].rpartition("/")[2] for tool in seen["tools"]]
    assert "tau2_get_task_info" in names
    assert set(seen["result"].data["tools"]) <= set(names)


def test_an_episode_for_a_trainer_is_played(stage: Stage) -> None:
    code = PRINTED["an episode"].code
    if stage.is_real:
        with pytest.raises(Exception, match="telecom has no task 'task_123'; there are"):
            execute(code)
    else:
        assert execute(code)["reward"] == 1.0
