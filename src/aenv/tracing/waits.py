"""Say what a program waits for: on a terminal once it takes over two seconds, elsewhere in the log.

A server keeps the same texts per request, as an `Activity`, so that a client can show what the server is doing for it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Self

from aenv.tracing.logging import getLogger

log = getLogger("waits")

FIRST = 2.0
"""Seconds after which a wait is shown."""
TICK = 0.5
"""Seconds between two looks at what a server is doing."""
AGAIN = 10.0
"""Seconds after which an unchanged wait is shown again."""
REMEMBERED = 1000

Ask = Callable[[], Awaitable[str]]


class Activity:
    """Causes that a request waits for, the innermost last."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    @property
    def text(self) -> str:
        """The innermost wait, or nothing."""
        return self.steps[-1] if self.steps else ""

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Record a wait without a timer of its own: thousands of requests may be in a queue."""
        self.steps.append(text)
        try:
            yield
        finally:
            self.steps.remove(text)


activity: ContextVar[Activity | None] = ContextVar("activity", default=None)
"""Activity of the request that the current task serves."""
_innermost: ContextVar[waiting_for | None] = ContextVar("innermost", default=None)
_shown: dict[str, float] = {}
"""Monotonic time at which each text was last shown. Many instances that wait for the same thing are one line."""


class waiting_for:  # used as a function: with waiting_for("..."):
    """Context manager around something that may take long.

    ``ask``: returns what a server is doing for this request; called every `TICK` seconds once the wait is shown.
    """

    def __init__(self, text: str, ask: Ask | None = None) -> None:
        self.text = text
        self._ask = ask
        self._asking: asyncio.Task[None] | None = None
        self._handle: asyncio.TimerHandle | threading.Timer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inner = 0

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._activity = activity.get()
        if self._activity is not None:
            self._step = self.text
            self._activity.steps.append(self._step)
        self._outer = _innermost.get()
        if self._outer is not None:
            self._outer._inner += 1
        _innermost.set(self)
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
        self._arm(FIRST)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._asking is not None:
            self._asking.cancel()
        _innermost.set(self._outer)  # not reset: a server may resume a request in another context than it began in
        if self._outer is not None:
            self._outer._inner -= 1
        if self._activity is not None:
            self._activity.steps.remove(self._step)

    def _arm(self, seconds: float) -> None:
        if self._loop is not None:
            self._handle = self._loop.call_later(seconds, self._tick)
            return
        timer = threading.Timer(seconds, self._tick)
        timer.daemon = True
        timer.start()
        self._handle = timer

    def _tick(self) -> None:
        if self._handle is None:
            return
        if self._ask is not None and self._loop is not None and (self._asking is None or self._asking.done()):
            self._asking = self._loop.create_task(self._update(self._ask))
        elif not self._inner:
            _show(self.text, time.monotonic() - self._began)
        self._arm(AGAIN if self._ask is None else TICK)

    async def _update(self, ask: Ask) -> None:
        try:
            more = await asyncio.wait_for(ask(), AGAIN)
        except Exception:
            more = ""  # an older server, or one that does not answer: the request itself will tell
        if not self._inner:
            _show(f"{self.text}: {more}" if more else self.text, time.monotonic() - self._began)


def _show(text: str, seconds: float) -> None:
    now = time.monotonic()
    if now - _shown.get(text, -AGAIN) < AGAIN:
        return
    if len(_shown) >= REMEMBERED:
        _shown.clear()
    _shown[text] = now
    line = f"waiting for {text} ({seconds:.0f} s)"
    if sys.stderr is not None and sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)  # noqa: T201
    else:
        log.info("%s", line)
