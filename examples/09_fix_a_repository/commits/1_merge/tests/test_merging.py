from intervals import merge


def test_overlapping_intervals_are_joined():
    assert merge([[4, 9], [1, 5]]) == [[1, 9]]


def test_separate_intervals_stay():
    assert merge([[5, 6], [1, 2]]) == [[1, 2], [5, 6]]
