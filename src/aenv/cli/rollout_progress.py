"""The progress of a rollout on one line of a terminal; without one, a line now and then."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable

import click

TERMINAL_SECONDS = 0.25
OTHER_SECONDS = 15.0


class ProgressLine:
    """Shows a text while the block runs."""

    def __init__(self, text: Callable[[], str], *, is_worth_keeping: Callable[[], bool] = lambda: True) -> None:
        """``is_worth_keeping``: whether the last text stays on the screen if the block fails."""
        self._text = text
        self._is_worth_keeping = is_worth_keeping
        self._on_terminal = sys.stderr.isatty()
        self._showing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> ProgressLine:
        self._showing = asyncio.ensure_future(self._show())
        return self

    async def __aexit__(self, kind: object, *exc: object) -> None:
        assert self._showing is not None
        self._showing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._showing
        kept = kind is None or self._is_worth_keeping()
        click.echo(("\r\x1b[K" if self._on_terminal else "") + (self._text() if kept else ""), err=True, nl=kept)

    async def _show(self) -> None:
        while True:
            await asyncio.sleep(TERMINAL_SECONDS if self._on_terminal else OTHER_SECONDS)
            click.echo(("\r\x1b[K" if self._on_terminal else "") + self._text(), err=True, nl=not self._on_terminal)
