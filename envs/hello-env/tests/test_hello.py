"""Plain unit tests: no server, no container."""

import hello
import pytest


@pytest.fixture(autouse=True)
def _new_episode():
    hello.said.clear()


def test_the_visitor_tells_their_name():
    assert hello.VISITOR in hello.ask_name()


def test_a_greeting_by_name_earns_the_full_score():
    assert hello.say(f"Hello {hello.VISITOR}, come in!") == "Hello to you, too!"
    assert hello.greeted() == {"score": 1.0, "said": 1}


def test_words_in_vain_cost_some_of_it():
    hello.say("Hello, whoever you are")
    hello.say(f"Welcome, {hello.VISITOR}")
    assert hello.greeted()["score"] == 0.5


def test_no_greeting_earns_nothing():
    hello.say("Bye")
    assert hello.greeted()["score"] == 0.0
