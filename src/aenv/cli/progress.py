"""Progress on a terminal; silent without one."""

from __future__ import annotations

import sys
import time
from types import TracebackType

import click

from aenv.cli.output import size

_PAUSE = 0.1


class ProgressBar:
    """A byte counter on one line of stderr, removed at the end."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._shown = 0.0
        self._wanted = sys.stderr.isatty()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            click.echo("\r\x1b[K", err=True, nl=False)

    def __call__(self, count: int) -> None:
        """Add to the count."""
        self._done += count
        now = time.monotonic()
        if self._wanted and now - self._shown >= _PAUSE:
            self._shown = now
            share = min(100, 100 * self._done // max(1, self._total))
            text = f"{self._what} {size(self._done)} of {size(self._total)} ({share} %)"
            click.echo(f"\r\x1b[K{text}", err=True, nl=False)
