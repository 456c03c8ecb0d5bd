"""The hidden tests: `call(function, *arguments)` runs the agent's function in a process of its own.

The assertions are evaluated here, in a process that runs nothing of the agent's.
"""


def test_intervals_that_touch_are_joined(call):
    assert call("merge", [[1, 3], [4, 5]]) == [[1, 5]]
    assert call("merge", [[1, 3], [3, 5]]) == [[1, 5]]


def test_an_interval_inside_of_another_changes_nothing(call):
    assert call("merge", [[1, 10], [2, 3], [5, 6]]) == [[1, 10]]


def test_separate_intervals_are_sorted(call):
    assert call("merge", [[8, 9], [-5, -2], [1, 2]]) == [[-5, -2], [1, 2], [8, 9]]
    assert call("merge", []) == []


def test_gaps_are_what_is_left(call):
    assert call("gaps", [[1, 10], [2, 3], [13, 13]], 0, 14) == [[0, 0], [11, 12], [14, 14]]
    assert call("gaps", [[5, 9], [0, 100]], 1, 20) == []
