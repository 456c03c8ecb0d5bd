"""A table of instances, printed once or redrawn on a terminal."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from aenv.cli.output import columns, size

if TYPE_CHECKING:
    from aenv.cli.usage_sampling import Row

HEAD = ("INSTANCE", "ENVIRONMENT", "STATUS", "UP", "CPU", "MEMORY", "PROCS", "CALLS", "CALLS/S", "OWNER", "EXPERIMENT")
KEYS = {"c": "cpu", "m": "memory", "n": "calls", "r": "calls_per_second", "a": "age"}
"""Keys that choose the sort column."""
SORTS = tuple(KEYS.values())


def cells(row: Row) -> tuple[str, ...]:
    """Format one row."""
    return (
        row.id, row.environment, row.status, _span(row.age),
        "-" if row.cpu is None else f"{row.cpu * 100:.1f}%",
        "-" if row.memory is None else size(row.memory),
        _count(row.processes), _count(row.calls),
        "-" if row.calls_per_second is None else f"{row.calls_per_second:.1f}",
        whose(row.account, row.owner), row.experiment or "-",
    )  # fmt: skip


def whose(account: str | None, owner: str | None) -> str:
    """Return the account, which the platform has authenticated, and in brackets the owner, which the caller names."""
    if account and owner:
        return f"{account} ({owner})"
    return account or owner or "-"


def ordered(rows: list[Row], by: str) -> list[Row]:
    """Sort rows, highest first."""
    return sorted(rows, key=lambda row: getattr(row, by) or 0, reverse=True)


def page(rows: list[Row], by: str, where: str, room: tuple[int, int] | None = None) -> str:
    """Format totals and rows. ``room``: columns and lines of the terminal."""
    states: dict[str, int] = {}
    for row in rows:
        states[row.status] = states.get(row.status, 0) + 1
    counted = ", ".join(f"{number} {state.lower()}" for state, number in sorted(states.items())) or "no instances"
    cpu = sum(row.cpu or 0.0 for row in rows)
    memory = sum(row.memory or 0 for row in rows)
    calls = sum(row.calls_per_second or 0.0 for row in rows)
    lines = [
        f"{where}  {counted}",
        f"CPU {cpu * 100:.1f}%  memory {size(memory)}  calls/s {calls:.1f}  by {by.replace('_per_second', '/s')}",
        "",
        *columns([HEAD, *map(cells, ordered(rows, by))], indent="").splitlines(),
    ]
    if room is not None:
        width, height = room
        lines = [line[: width - 1] for line in lines[: height - 1]]
    return "\n".join(lines)


class TableScreen:
    """The terminal in full-screen mode; a context manager."""

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator[TableScreen]:
        """Restore the terminal."""
        import termios
        import tty

        keyboard = sys.stdin.fileno() if sys.stdin.isatty() else None
        before = termios.tcgetattr(keyboard) if keyboard is not None else None
        try:
            if keyboard is not None:
                tty.setcbreak(keyboard)
            _write("\x1b[?1049h\x1b[?25l")
            yield cls(keyboard)
        finally:
            _write("\x1b[?25h\x1b[?1049l")
            if keyboard is not None and before is not None:
                termios.tcsetattr(keyboard, termios.TCSADRAIN, before)

    def __init__(self, keyboard: int | None) -> None:
        self._keyboard = keyboard

    @property
    def room(self) -> tuple[int, int]:
        """Return the current columns and lines."""
        there = os.get_terminal_size(sys.stdout.fileno())
        return there.columns, there.lines

    def draw(self, text: str) -> None:
        """Redraw the screen. Lines are overwritten, not erased first, so nothing flickers."""
        _write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in text.splitlines()) + "\x1b[J")

    def key(self, seconds: float) -> str:
        """Return the key pressed within the timeout; empty if none."""
        if self._keyboard is None:
            time.sleep(seconds)
            return ""
        ready, _, _ = select.select([self._keyboard], [], [], seconds)
        if not ready:
            return ""
        pressed = os.read(self._keyboard, 64)
        return pressed.decode(errors="replace")[:1] if pressed else "q"


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _count(number: int | None) -> str:
    return "-" if number is None else str(number)


def _span(seconds: float) -> str:
    """Format a duration with its two largest units."""
    whole = int(seconds)
    for step, unit, below, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= step:
            return f"{whole // step}{unit}{whole % step // below:02d}{name}"
    return f"{whole}s"
