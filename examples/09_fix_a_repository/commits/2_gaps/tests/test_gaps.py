from intervals import gaps


def test_what_is_not_covered_is_free():
    assert gaps([[3, 4], [7, 20]], 1, 10) == [[1, 2], [5, 6]]
