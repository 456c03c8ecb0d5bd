from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aenv.testing import model_server
from tests.trainers.treasure import TREASURE, losing_instances, needs, outcomes, walks

needs("verifiers.v1", "verifiers")

import verifiers.v1 as vf  # noqa: E402
from verifiers.v1.agent import Agent  # noqa: E402

from aenv.adapters.trainers.verifiers import (  # noqa: E402
    EnvironmentHarnessConfig,
    EnvironmentTaskset,
    EnvironmentTasksetConfig,
)


@pytest.fixture(autouse=True)
def _plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of a user, which verifiers finds by its name."""
    names = "EnvironmentHarness, EnvironmentTaskset"
    code = f"from aenv.adapters.trainers.verifiers import {names}\n__all__ = {names.split(', ')!r}\n"
    (tmp_path / "treasure_plugin.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))


def taskset(store: Path) -> EnvironmentTaskset:
    return EnvironmentTaskset(EnvironmentTasksetConfig(environment=TREASURE, options={"store": str(store)}))


def traced(store: Path, model_url: str, task: Any) -> Any:
    """Run a task with verifiers' own agent, interception and scoring, and return the trace."""
    config = vf.AgentConfig(
        harness=EnvironmentHarnessConfig(id="treasure_plugin", environment=TREASURE, options={"store": str(store)}),
        runtime=vf.SubprocessConfig(),
        model="scripted",
        client=vf.EvalClientConfig(base_url=model_url, api_key_var="NO_SUCH_KEY"),
    )
    return asyncio.run(Agent(config).run(task))


def test_the_taskset_has_the_tasks_without_what_must_stay_hidden(store: Path) -> None:
    tasks = list(taskset(store))
    assert [task.data.id for task in tasks] == ["left", "right"]
    assert "left end" in tasks[0].data.prompt
    assert "solution" not in tasks[0].data.model_dump_json()


def test_a_rollout_is_traced_and_has_the_environments_reward(store: Path) -> None:
    task = list(taskset(store))[1]
    with model_server(walks("right")) as model:
        trace = traced(store, model.url, task)
    assert trace.errors == [] if hasattr(trace, "errors") else trace.error is None
    assert trace.rewards["environment_reward"].value == 1.0
    said = str([message for branch in trace.branches for message in branch.messages])
    assert "I am there." in said
    assert outcomes(store) == [("right", "ok", 1.0)]


def test_a_lost_instance_is_an_error_of_the_trace_and_no_reward(store: Path) -> None:
    task = next(iter(taskset(store)))
    with model_server(walks("left")) as model, losing_instances():
        trace = traced(store, model.url, task)
    assert "the machine of the instance has failed" in str(trace.errors if hasattr(trace, "errors") else trace.error)
    assert not trace.rewards or trace.rewards["environment_reward"].value is None
