"""A small library: shelves and readers change, a clock runs, and one tool changes something only later."""

import time
from typing import Any

from aenv import register_reward, register_tool

books: dict[str, str] = {"dune": "shelf", "emma": "shelf", "ulysses": "shelf"}
members: list[str] = ["ann"]


@register_tool
def overview() -> dict[str, Any]:
    """Show all books, all members, and the time."""
    return {"books": books, "members": members, "time": time.time()}


@register_tool
def find_book(book: str) -> str:
    """Tell where a book is."""
    return books[book]


@register_tool
def join(member: str) -> str:
    """Make somebody a member."""
    if member in members:
        raise ValueError("a member already")
    members.append(member)
    return member


@register_tool
def lend(book: str, member: str) -> str:
    """Lend a book to a member."""
    if books[book] != "shelf" or member not in members:
        raise ValueError("not possible")
    books[book] = member
    return f"{book} to {member}"


@register_tool
def close_day() -> str:
    """Put all books that are lent back on the shelf."""
    for book in books:
        books[book] = "shelf"
    return "closed"


@register_tool
def buy(book: str, count: int = 1) -> str:
    """Buy a new book."""
    if book in books:
        raise ValueError("it is there already")
    books[book] = "shelf"
    return book


@register_tool
def expire() -> None:
    """Never succeed."""
    raise RuntimeError("not today")


@register_reward
def shelved(books: dict[str, str]) -> float:
    """1 when all books are where they are said to be."""
    return float(globals()["books"] == books)
