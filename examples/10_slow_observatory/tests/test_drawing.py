"""Unit tests: the functions are called as they are; progress goes nowhere outside of a call."""

import asyncio

import observatory
import pytest


def test_a_picture_is_the_same_every_time():
    assert observatory.draw("lyra", 5).tobytes() == observatory.draw("lyra", 5).tobytes()


def test_more_exposures_show_more_stars():
    text, picture = asyncio.run(observatory.take_picture("orion", 3))
    assert text == "orion, 3 exposures: 3 of its stars can be seen."
    assert picture.size == (96, 96)


def test_an_unknown_target_is_an_error_that_lists_the_others():
    with pytest.raises(LookupError, match="there are pleiades, orion, lyra"):
        observatory.count_stars("vega")
