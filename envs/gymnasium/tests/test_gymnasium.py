"""Episodes with Gymnasium itself, where it is installed; without it, that is said."""

import importlib.util

import gymnasium_env
import pytest

installed = pytest.mark.skipif(importlib.util.find_spec("gymnasium") is None, reason="gymnasium is not installed")


@pytest.mark.skipif(importlib.util.find_spec("gymnasium") is not None, reason="gymnasium is installed")
def test_without_the_package_every_tool_says_so():
    with pytest.raises(RuntimeError, match="pip install gymnasium"):
        gymnasium_env.reset()


@installed
def test_a_known_way_over_the_lake_earns_one(monkeypatch):
    monkeypatch.setenv("GYM_KWARGS", '{"is_slippery": false}')
    monkeypatch.setattr(gymnasium_env, "episode", gymnasium_env._made())
    gymnasium_env.reset(seed=1)
    for action in (1, 1, 2, 1, 2):
        assert not gymnasium_env.step(action)["terminated"]
    assert gymnasium_env.step(2)["terminated"]
    assert gymnasium_env.total_reward()["score"] == 1.0
    with pytest.raises(ValueError, match="call reset"):
        gymnasium_env.step(0)


@installed
def test_an_action_that_is_none_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"4 is no action here; the actions are Discrete\(4\)"):
        gymnasium_env.step(4)
