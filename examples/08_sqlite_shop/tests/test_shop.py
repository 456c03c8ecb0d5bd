"""Unit tests: the functions are called as they are, with no server and no sandbox."""

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest
import shop


@pytest.fixture(autouse=True)
def _fresh() -> None:
    shop.reset()


def test_a_search_has_exact_prices():
    assert [(one.name, one.price) for one in shop.search_products("tea", max_price=Decimal("4.50"))] == [
        ("green tea", Decimal("4.5")),
        ("black tea", Decimal("3.9")),
    ]


def test_an_order_that_cannot_be_filled_changes_nothing():
    before = shop.state()
    result = shop.place_order(1, [shop.Wanted(1, 2), shop.Wanted(3, 7)])
    assert result.is_error
    assert shop.state() == before


def test_the_last_items_are_sold_only_once():
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: shop.place_order(1, [shop.Wanted(3, 2)]), range(8)))
    assert sum(not result.is_error for result in results) == 3
    assert shop.state()["stock"]["coffee beans"] == 0


def test_cancelling_twice_restocks_once():
    assert shop.cancel_order(1).status == "cancelled"
    with pytest.raises(LookupError, match="no open order 1"):
        shop.cancel_order(1)
    assert shop.state()["stock"]["teapot"] == 4
