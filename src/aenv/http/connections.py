"""Connection limits of a server: total, per peer, and idle time.

A client can open connections before it has shown a token, and each costs a file descriptor and some memory. So their
number is bounded, for the server and for each peer. When a limit is reached, the oldest connection that has not yet
sent a complete request is closed to make room. Silent connections are closed.

An idle server must cost nothing, so no timer runs while there is nothing to close: the first connection starts one, it
checks all connections every `TICK` seconds, and it stops with the last connection. The server of an instance keeps a
single connection of the platform or the SDK open without a timer: with thousands of idle instances, one timer each
would keep the machine busy.
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
"""Close a connection that never carried a complete request after this many silent ticks."""
IDLE_TICKS = 4
"""Close any other idle connection after this many ticks: 120 to 150 s. Our clients reuse one for at most 45 s."""
STALLED_TICKS = 4
"""Close a connection whose peer does not read its responses after this many ticks."""
MAX_CONNECTIONS = 32 * 1024
"""Connections per server; fewer where RLIMIT_NOFILE is lower."""
OUTSIDE = "outside"
"""Peer of a sandbox's server outside the sandbox: the platform, or the SDK of the user who runs the platform."""
_CREDENTIALS = struct.Struct("3i")


class Watched(Protocol):
    """A connection as seen by `Connections`."""

    quiet: int
    """Ticks since the last request started, counted while idle."""
    stalled: int
    """Ticks in which the peer read nothing of what was written."""
    proven: bool
    """True once a complete request has arrived."""

    @property
    def is_idle(self) -> bool:
        """True while neither a request nor a part of one is in progress."""
        ...

    @property
    def is_stalled(self) -> bool:
        """True while the peer reads too slowly."""
        ...

    @property
    def is_closing(self) -> bool:
        """True once closed, while the last bytes are being sent."""
        ...

    def close(self) -> None:
        """Close once all written bytes are sent."""

    def abort(self) -> None:
        """Close at once."""


@dataclass(slots=True)
class _Peer:
    count: int = 0
    unproven: dict[Watched, None] = field(default_factory=dict)
    """Connections without a complete request yet, the oldest first."""


class Connections:
    """All connections of one server."""

    def __init__(self, most: int | None = None, per_peer: int | None = None) -> None:
        """``most``: limit in total, by default from RLIMIT_NOFILE; ``per_peer``: by default seven eighths of it."""
        self._most = most
        self._per_peer = per_peer
        self._all: dict[Watched, str] = {}
        self._peers: dict[str, _Peer] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.on_empty: Callable[[], None] = lambda: None
        """Called when the last connection is gone."""

    def __iter__(self) -> Iterator[Watched]:
        return iter(list(self._all))

    def __len__(self) -> int:
        return len(self._all)

    @property
    def is_watching(self) -> bool:
        """True while the timer is set."""
        return self._timer is not None

    def add(self, connection: Watched, peer: str) -> bool:
        """Add a connection, evicting another if necessary. Returns False if the limit is reached and none can go."""
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
        """Record that a complete request has arrived. The connection is no longer evicted."""
        connection.proven = True
        peer = self._all.get(connection)
        if peer is not None:
            self._peers[peer].unproven.pop(connection, None)
        if self._needs_no_timer():
            self._stop_timer()

    def forget(self, connection: Watched) -> None:
        """Remove a connection that is gone."""
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
        """Start the timer, unless it runs or there is nothing to wait for."""
        if self._timer is None and self._all and not self._needs_no_timer():
            self._timer = asyncio.get_running_loop().call_later(TICK, self.sweep)

    def _needs_no_timer(self) -> bool:
        """Return whether the only connection is one that may stay idle for as long as its client likes."""
        if len(self._all) != 1:
            return False
        [(connection, peer)] = self._all.items()
        return peer == OUTSIDE and connection.proven and not connection.is_stalled and not connection.is_closing

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def sweep(self) -> None:
        """Close connections that are due, and set the timer again if any remain to be checked."""
        self._timer = None
        waits = False
        for connection in list(self._all):
            waits |= self._check(connection)
        if waits:
            self.watch()

    def _check(self, connection: Watched) -> bool:
        """Close the connection if it is due. Returns whether to check it again."""
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
            return not connection.proven  # a request is in progress; `watch` is called when it ends
        return True

    def _evict(self, peer: _Peer) -> bool:
        """Close a peer's oldest connection without a complete request. Returns False if there is none."""
        for connection in list(peer.unproven):
            self.forget(connection)
            connection.abort()
            return True
        return False

    def _limits(self) -> tuple[int, int]:
        if self._most is None:
            files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            self._most = (
                MAX_CONNECTIONS if files == resource.RLIM_INFINITY else max(16, min(MAX_CONNECTIONS, files * 3 // 4))
            )
        if self._per_peer is None:
            self._per_peer = self._most - self._most // 8
        return self._most, self._per_peer


def peer_key(connection: socket.socket) -> str:
    """Return the key by which connections are counted.

    For TCP it is the address; all addresses of this machine count as one, and so does an IPv6 /64 network, since one
    host usually has all of it. For a unix socket it is the user. A process outside of our PID namespace, such as the
    platform for a server in a sandbox, is a peer of its own.
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
