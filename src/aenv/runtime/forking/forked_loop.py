"""An event loop that is running when its process is forked, and goes on in the fork.

Creating and starting a loop writes to a fifth of all the memory that an instance ever writes to, and every page of that
is copied first. Here the parent does it once. It uses private parts of asyncio, so only on versions of Python that
`aenv.isolation.forking.cpython_internals` names.
"""

from __future__ import annotations

import asyncio
import select
import selectors
import sys
from typing import Any


class ForkedLoop(asyncio.SelectorEventLoop):
    """A loop without descriptors between `pause` and `resume`, so that no two forks share any."""

    _close_self_pipe: Any
    _make_self_pipe: Any
    _selector: Any

    def pause(self) -> None:
        """Close the loop's descriptors, before the fork."""
        self._close_self_pipe()
        self._selector._selector.close()

    def resume(self) -> None:
        """Open descriptors of its own in the fork, and be the running loop of this process."""
        self._selector._selector = select.epoll()
        self._make_self_pipe()
        asyncio._set_running_loop(self)
        if sys.version_info >= (3, 12):  # there a fork forgets the current event loop, too
            asyncio.set_event_loop(self)


def renew(loop: asyncio.AbstractEventLoop) -> None:
    """Give a loop new descriptors in a fork, which has none of those that it had. It waits for nothing afterwards."""
    ours: Any = loop
    for before in (ours._selector, ours._ssock, ours._csock):
        before.close()
    ours._selector = selectors.DefaultSelector()
    ours._internal_fds = 0
    ours._make_self_pipe()


def watched(loop: asyncio.AbstractEventLoop) -> set[int]:
    """Return the descriptors that a loop waits for."""
    ours: Any = loop
    return {key.fd for key in ours._selector.get_map().values()}


def own_descriptors(loop: asyncio.AbstractEventLoop) -> set[int]:
    """Return the descriptors that a loop consists of."""
    ours: Any = loop
    return {ours._selector.fileno(), ours._ssock.fileno(), ours._csock.fileno()}
