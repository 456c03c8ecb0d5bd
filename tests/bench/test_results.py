"""Results of a benchmark: rewards and faults."""

from __future__ import annotations

import pytest

from aenv.bench.base import Result
from aenv.errors import AEnvError, FunctionFailed, InstanceEnded, InvalidArguments, StateDestroyed


@pytest.mark.parametrize(
    "error", [InstanceEnded.because("x-1", "out of memory", "policy"), StateDestroyed("the repository is gone")]
)
def test_a_task_whose_state_the_agent_destroyed_has_the_failure_reward(error: AEnvError) -> None:
    result = Result("task").failed(error)
    assert result.counts
    assert (result.reward, result.fault) == (0.0, "policy")
    assert result.error == error.message


@pytest.mark.parametrize(
    "error",
    [InstanceEnded.because("x-1", "killed"), FunctionFailed("a bug"), InvalidArguments("a bug"), OSError("disk")],
)
def test_any_other_error_leaves_the_reward_absent(error: Exception) -> None:
    assert not Result("task", reward=1.0).failed(error).counts
