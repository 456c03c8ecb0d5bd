"""An event loop that runs already when the process that it is in is forked.

To make one, and to have it run, writes to a fifth of all the memory that an instance ever writes to, and every page of
that is copied first. In the parent it is done once.
"""

from __future__ import annotations

import asyncio
import select
import sys
from typing import Any


class ForkedLoop(asyncio.SelectorEventLoop):
    """It has no descriptors from `pause` on until a fork says `begin`, so that no two forks share any."""

    _close_self_pipe: Any
    _make_self_pipe: Any
    _selector: Any

    def pause(self) -> None:
        """Before the fork."""
        self._close_self_pipe()
        self._selector._selector.close()

    def begin(self) -> None:
        """Be the loop of this process."""
        self._selector._selector = select.epoll()
        self._make_self_pipe()
        asyncio._set_running_loop(self)
        if sys.version_info >= (3, 12):  # where a fork forgets the other one, too
            asyncio.set_event_loop(self)
