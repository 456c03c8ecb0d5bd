"""Refusal of a plain ``with`` where ``async with`` is needed: says what to write, which Python's own error does not."""

from __future__ import annotations

from typing import NoReturn

from aenv.errors import InvalidUse


class AsyncOnly:
    """Base of asynchronous context managers that have a blocking twin."""

    _twin: str
    """How to get the blocking twin."""

    def __enter__(self) -> NoReturn:
        raise InvalidUse(f"{type(self).__name__} needs 'async with'; without async, use 'with {self._twin}'")

    def __exit__(self, *exc: object) -> None:
        """Complete the protocol, so that Python calls `__enter__`."""
