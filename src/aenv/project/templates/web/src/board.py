"""The environment: a board with notes that an agent sorts. What console/ shows of it is what the function `board` returns."""

from typing import Literal

from aenv import register_function, register_reward, register_tasks, register_tool

Column = Literal["to do", "doing", "done"]
_notes: dict[str, Column] = {}
"""Columns by note."""


@register_tool
def add_note(text: str) -> dict[str, Column]:
    """Put a note into the column "to do".

    Args:
        text: What has to be done.
    """
    _notes.setdefault(text, "to do")
    return _notes


@register_tool
def move_note(text: str, column: Column) -> dict[str, Column]:
    """Move a note into another column.

    Args:
        text: The note.
        column: Where it goes.
    """
    if text not in _notes:
        raise ValueError(f"there is no note {text!r}; there are {', '.join(_notes) or 'none'}")
    _notes[text] = column
    return _notes


@register_function
def board() -> dict[str, Column]:
    """Return the notes with their columns."""
    return _notes


@register_reward
def sorted_notes(wanted: dict[str, str]) -> float:
    """Return the share of notes that are where they should be.

    Args:
        wanted: Columns by note.
    """
    return sum(_notes.get(text) == column for text, column in wanted.items()) / len(wanted)


@register_tasks
def tasks():
    """List the tasks."""
    yield {
        "id": "breakfast",
        "instruction": "Tea is made, the eggs are boiling, and nobody has set the table. Put all three on the board.",
        "reward": {"arguments": {"wanted": {"tea": "done", "eggs": "doing", "table": "to do"}}},
        "solution": [
            {"tool": "add_note", "arguments": {"text": "tea"}},
            {"tool": "add_note", "arguments": {"text": "eggs"}},
            {"tool": "add_note", "arguments": {"text": "table"}},
            {"tool": "move_note", "arguments": {"text": "tea", "column": "done"}},
            {"tool": "move_note", "arguments": {"text": "eggs", "column": "doing"}},
        ],
    }
