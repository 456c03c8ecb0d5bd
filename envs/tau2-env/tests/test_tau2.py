"""Episodes with the benchmark itself, where it is installed; without it, how to get it is said."""

import importlib.util

import pytest
import tau2_source

problem = tau2_source.find()
installed = pytest.mark.skipif(problem is not None, reason="TAU2-Bench is not installed: python install.py")


@pytest.mark.skipif(problem is None, reason="TAU2-Bench is installed")
def test_without_the_benchmark_every_function_says_how_to_get_it():
    import tau2_env

    with pytest.raises(RuntimeError, match=r"install\.py --source CHECKOUT.*on PyPI is something else"):
        tau2_env.tau2_get_task_info()


@installed
def test_a_python_without_audioop_is_told_what_replaces_it(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "audioop" else find(name))
    assert "pip install audioop-lts" in tau2_source.find()


def load(domain, task_id="", solo=None, judge=""):
    from _episode import Loaded
    from _models import Judge

    return Loaded(domain, task_id, solo, 100, judge=Judge(judge))


def play(loaded, wrong=False):
    """The task's own solution, as an agent would do it."""
    episode = loaded.begin()
    for step in loaded.solution(wrong):
        if step["tool"] == "tau2_send_message":
            episode.speak(**step["arguments"])
        elif step["tool"] == "done":
            episode.finish()
        else:
            episode.call(step["tool"], step["arguments"])
    return episode


@installed
def test_tasks_are_listed_by_domain_and_split():
    from _episode import task_names

    assert len(task_names("airline")) == 50
    assert len(task_names("retail", "train")) == 74
    with pytest.raises(ValueError, match="there is no domain 'x'"):
        task_names("x")


@installed
@pytest.mark.parametrize("domain", ["airline", "retail", "telecom", "banking"])
def test_the_solution_earns_one_but_not_with_a_mistake_in_it_and_nothing_done_does_not(domain):
    loaded = load(domain, {"airline": "8", "retail": "0"}.get(domain, ""))
    assert play(loaded).graded() == 1.0
    assert play(loaded, wrong=True).graded() == 0.0
    assert loaded.do_nothing() == 0.0


@installed
def test_where_nothing_is_to_be_changed_the_mistake_is_a_change():
    loaded = load("airline", "0")
    assert loaded.do_nothing() == 1.0
    assert play(loaded).graded() == 1.0
    assert play(loaded, wrong=True).graded() == 0.0


@installed
def test_what_a_model_has_to_judge_is_not_graded_without_one_unless_that_was_asked_for(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(
        RuntimeError, match="a model has to judge 1 of this task's assertions; name one with TAU2_JUDGE"
    ):
        play(load("retail", "2")).graded()
    episode = play(load("retail", "2", judge="none"))
    assert episode.graded() == 1.0
    assert episode.reward_info["not_judged"] == [
        "Agent should tell the user that there are 10 t-shirt options available."
    ]
    assert "there are 10 t-shirt options available" in str(load("retail", "2").solution())


@installed
def test_a_judge_that_leaves_something_out_has_not_judged(monkeypatch):
    from tau2.data_model.message import AssistantMessage
    from tau2.evaluator import evaluator_nl_assertions

    silent = AssistantMessage(role="assistant", content='{"results": []}')
    monkeypatch.setattr(evaluator_nl_assertions, "generate", lambda **_: silent)
    with pytest.raises(RuntimeError, match="the judge spoke of 0 of 1 assertions"):
        play(load("retail", "2", judge="openai/judge")).graded()


@installed
def test_a_task_whose_user_is_to_be_told_something_is_played_with_one():
    assert play(load("mock", "update_task_with_initialization_data")).graded() == 1.0
    assert load("mock").solo


@installed
def test_instructions_that_speak_of_the_end_do_not_end_the_episode():
    assert play(load("banking", "task_034")).graded() == 1.0


@installed
def test_a_domain_with_a_user_cannot_be_played_alone():
    with pytest.raises(ValueError, match="TAU2_SOLO_MODE=false"):
        load("airline", solo=True)


@installed
def test_an_unknown_task_or_domain_is_said():
    with pytest.raises(ValueError, match="has no task 'x'"):
        load("mock", "x")
    with pytest.raises(ValueError, match="there is no domain 'x'"):
        load("x")


@installed
def test_a_user_speaks_first_and_a_wrong_call_is_part_of_the_game():
    episode = load("airline", "8").begin()
    assert "\nuser: Domain: airline" in episode.open()
    assert "Error" in episode.call("get_user_details", {"user_id": "nobody"})
    assert not episode.done


@installed
def test_the_key_of_the_users_model_is_not_shown(monkeypatch):
    import tau2_env

    monkeypatch.setattr(tau2_env, "loaded", load("mock"))
    monkeypatch.setenv("TAU2_USER_LLM_API_KEY", "secret")
    tau2_env._episode.cache_clear()
    assert "secret" not in str(tau2_env.tau2_get_status())
    assert tau2_env.tau2_done()["done"]
    assert tau2_env.tau2_send_message("Are you still there?")["done"]
    assert tau2_env.tau2_reward()["total_reward"] == tau2_env.tau2_reward()["do_nothing_reward"]


@installed
def test_keys_are_taken_out_of_errors(monkeypatch):
    from _models import told

    monkeypatch.setenv("TAU2_JUDGE_LLM_API_KEY", "sk-1234")
    assert told(ValueError("Incorrect API key provided: sk-1234")) == "ValueError: Incorrect API key provided: ***"
