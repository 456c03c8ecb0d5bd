"""Suggest the name that a user probably meant."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean X?"`` for the closest known name; empty if none is close."""
    import difflib  # only after a mistake

    by_folded = {each.casefold(): each for each in known}
    close = difflib.get_close_matches(name.casefold(), by_folded, n=1)
    return f"; did you mean {by_folded[close[0]]}?" if close else ""
