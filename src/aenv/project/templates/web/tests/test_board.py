"""Unit tests of the environment: no server, no container."""

import board
import pytest


@pytest.fixture(autouse=True)
def no_notes():
    board._notes.clear()


def test_a_new_note_is_to_do():
    assert board.add_note("tea") == {"tea": "to do"}


def test_a_note_that_is_not_there_cannot_be_moved():
    with pytest.raises(ValueError, match="there is no note"):
        board.move_note("tea", "done")


def test_each_task_is_solved_by_its_solution():
    for task in board.tasks():
        for step in task["solution"]:
            getattr(board, step["tool"])(**step["arguments"])
        assert board.sorted_notes(**task["reward"]["arguments"]) == 1.0
