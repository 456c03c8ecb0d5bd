"""Unit tests of the environment: no server, no container."""

from custom_env import describe_task, my_custom_echo_env, my_custom_reward


def test_the_tool_returns_its_input():
    assert my_custom_echo_env("hello") == {"result": "hello"}


def test_a_task_has_a_description():
    assert describe_task("echo")["task_name"] == "echo"


def test_the_expected_output_earns_the_full_score():
    reward = my_custom_reward({"name": "greet", "output": "hello", "expected": "hello"})
    assert reward == {"task_name": "greet", "status": "completed", "score": 1.0, "raw_output": "hello"}


def test_another_output_earns_nothing():
    assert my_custom_reward({"output": "bye", "expected": "hello"})["score"] == 0.0


def test_the_last_output_is_compared_with_the_stored_answer():
    my_custom_echo_env("hello, world")
    assert my_custom_reward("greet-the-world")["score"] == 1.0
    my_custom_echo_env("goodbye")
    assert my_custom_reward("greet-the-world")["score"] == 0.0


def test_a_task_without_an_expected_output_is_always_solved():
    assert my_custom_reward("greet")["score"] == 1.0
