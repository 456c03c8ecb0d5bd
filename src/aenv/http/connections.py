"""Which connections a server keeps: how many, from whom, and how long in silence.

Whoever can reach a server can open connections to it before they have shown a token, and each costs a descriptor and
some memory. So their number is bounded, for the server and for each peer; when there is no place left, the oldest
connection that has not yet sent a whole request makes room; and silent ones are closed.

An idle server must cost nothing, so there is no timer while there is nothing to close: one is set when the first
connection comes, looks at all of them every `TICK` seconds, and is gone with the last one. The server of an instance
keeps a single connection of the platform or the SDK open without a timer: with thousands of idle instances, one timer
each would keep the machine busy.
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

TICK = 30.0
SILENT_TICKS = 1
"""A connection on which no whole request has ever come is closed after so many ticks of silence."""
IDLE_TICKS = 4
"""One on which requests have come, after so many: 120 to 150 s. Our clients stop using one after 45 s."""
STALLED_TICKS = 4
"""One whose peer does not read what is written to it, after so many."""
MOST = 32 * 1024
"""Connections of one server, at the most; fewer where the process may not open that many files."""
OUTSIDE = "outside"
"""The peer of a server in a sandbox that is not in it: the platform, or the SDK of the platform's own user."""
_CREDENTIALS = struct.Struct("3i")


class Watched(Protocol):
    """What has to be known of a connection."""

    quiet: int
    """Ticks since the last request began on it, while none was under way."""
    stalled: int
    """Ticks for which the peer has not read what was written."""
    proven: bool
    """Whether a whole request has come on it."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way: no request, and no part of one."""
        ...

    @property
    def is_stalled(self) -> bool:
        """Whether the peer does not keep up with what is written."""
        ...

    @property
    def is_closing(self) -> bool:
        """Whether it waits for its last bytes to go out."""
        ...

    def close(self) -> None:
        """Hang up when what was written has gone out."""

    def abort(self) -> None:
        """Hang up at once."""


@dataclass(slots=True)
class _Peer:
    count: int = 0
    unproven: dict[Watched, None] = field(default_factory=dict)
    """The oldest first."""


class Connections:
    """The connections of one server."""

    def __init__(self, most: int | None = None, per_peer: int | None = None) -> None:
        """``most``: in all; ``per_peer``: from one. Without, as many as the process may have, and seven eighths."""
        self._most = most
        self._per_peer = per_peer
        self._all: dict[Watched, str] = {}
        self._peers: dict[str, _Peer] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.on_empty: Callable[[], None] = lambda: None
        """Called when the last one is gone."""

    def __iter__(self) -> Iterator[Watched]:
        return iter(list(self._all))

    def __len__(self) -> int:
        return len(self._all)

    def add(self, connection: Watched, peer: str) -> bool:
        """Take one in, if need be in place of another; False: there is no place for it."""
        most, per_peer = self._limits()
        own = self._peers.get(peer)
        if own is not None and own.count >= per_peer and not self._evict(own):
            return False
        if len(self._all) >= most and not self._evict(max(self._peers.values(), key=lambda each: each.count)):
            return False
        self._all[connection] = peer
        own = self._peers.setdefault(peer, _Peer())
        own.count += 1
        own.unproven[connection] = None
        self.watch()
        return True

    def prove(self, connection: Watched) -> None:
        """A whole request has come on it: it is not closed to make room for another."""
        connection.proven = True
        peer = self._all.get(connection)
        if peer is not None:
            self._peers[peer].unproven.pop(connection, None)
        if self._may_stay():
            self._stop_timer()

    def forget(self, connection: Watched) -> None:
        """One is gone."""
        peer = self._all.pop(connection, None)
        if peer is None:
            return
        own = self._peers[peer]
        own.count -= 1
        own.unproven.pop(connection, None)
        if not own.count:
            del self._peers[peer]
        if not self._all:
            self._stop_timer()
            self.on_empty()

    def watch(self) -> None:
        """Look at all of them soon, and again for as long as there is something to wait for."""
        if self._timer is None and self._all and not self._may_stay():
            self._timer = asyncio.get_running_loop().call_later(TICK, self._look)

    def _may_stay(self) -> bool:
        """Whether there is one connection only, and it may be idle for as long as its client likes."""
        if len(self._all) != 1:
            return False
        [(connection, peer)] = self._all.items()
        return peer == OUTSIDE and connection.proven and not connection.is_stalled and not connection.is_closing

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        waits = False
        for connection in list(self._all):
            waits |= self._look_at(connection)
        if waits:
            self.watch()

    def _look_at(self, connection: Watched) -> bool:
        """Close it if it is time to; whether there is a reason to look at it again."""
        if connection.is_closing:
            connection.stalled += 1
            if connection.stalled > 1:
                connection.abort()
        elif connection.is_stalled:
            connection.stalled += 1
            if connection.stalled > STALLED_TICKS:
                connection.abort()
        elif connection.is_idle:
            connection.quiet += 1
            if connection.quiet > (IDLE_TICKS if connection.proven else SILENT_TICKS):
                connection.close()
        else:
            return not connection.proven  # a request is under way; when it ends, `watch` is called
        return True

    def _evict(self, peer: _Peer) -> bool:
        """Close the oldest connection of a peer on which no whole request has come; False: it has none."""
        for connection in list(peer.unproven):
            self.forget(connection)
            connection.abort()
            return True
        return False

    def _limits(self) -> tuple[int, int]:
        if self._most is None:
            files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            self._most = MOST if files == resource.RLIM_INFINITY else max(16, min(MOST, files * 3 // 4))
        if self._per_peer is None:
            self._per_peer = self._most - self._most // 8
        return self._most, self._per_peer


def peer_of(connection: socket.socket) -> str:
    """Whom connections are counted for.

    An address; all of this machine's own are one, and so are those of one IPv6 network, as whoever has one has them
    all. Over a unix socket it is the user; a process outside of our process namespace, such as the platform's for a
    server in a sandbox, is another peer than every process inside.
    """
    if connection.family == socket.AF_UNIX:
        pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return f"user {uid}" if pid else OUTSIDE
    peer, own = connection.getpeername()[0], connection.getsockname()[0]
    if peer == own or peer.startswith("127."):
        return "this machine"
    address = ipaddress.ip_address(peer.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return "this machine" if address.is_loopback else f"{int(address) >> 64:x}::/64"
        address = address.ipv4_mapped
    return "this machine" if address.is_loopback else str(address)
