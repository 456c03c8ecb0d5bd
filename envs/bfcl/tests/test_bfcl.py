"""Tasks with the benchmark itself, where it is installed; without it, that is said."""

import importlib.util

import bfcl_env
import pytest

present = importlib.util.find_spec("bfcl_eval") is not None
installed = pytest.mark.skipif(not present, reason="bfcl-eval is not installed")


@pytest.mark.skipif(present, reason="bfcl-eval is installed")
def test_without_the_package_every_tool_says_so():
    with pytest.raises(RuntimeError, match="pip install --no-deps bfcl-eval"):
        bfcl_env.get_request()


def play(task):
    from _turns import Episode

    episode = Episode(task)
    for step in episode.solution():
        if step["tool"] == "end_turn":
            episode.end_turn()
        else:
            episode.call(step["tool"], step["arguments"])
    assert episode.done
    return episode


@installed
def test_every_solution_earns_one_and_doing_nothing_does_not():
    from _turns import Episode, names

    wrong = [name for name in names() if play(name).graded()["score"] != 1.0]
    assert wrong == []
    assert not [name for name in names() if Episode(name).graded()["score"]]


@installed
def test_a_solution_earns_the_same_when_it_is_graded_again():
    episode = play("multi_turn_base_3")
    assert [episode.graded()["score"] for _ in range(3)] == [1.0] * 3


@installed
def test_a_function_that_comes_later_is_not_there_before():
    from _turns import Episode

    episode = Episode("multi_turn_miss_func_0")
    with pytest.raises(ValueError, match="no function sort yet"):
        episode.call("sort", {"file_name": "x"})


@installed
def test_an_unknown_task_is_said():
    from _turns import Episode

    with pytest.raises(ValueError, match="there is no task 'x'"):
        Episode("x")
