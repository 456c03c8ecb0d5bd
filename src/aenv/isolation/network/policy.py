"""Which network a sandbox has.

``none``: nothing, not even a loopback. ``loopback``: its own, and nothing else. ``blackhole``: the same, but what is
sent elsewhere is lost and not refused, as behind a firewall. ``egress``: its own loopback, and on it a door to a list
of hosts (`aenv.isolation.network.egress_proxy`). ``host``: the host's own network, with everything on it.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from aenv.isolation.network.allow_list import AllowList

if TYPE_CHECKING:
    from aenv.isolation.kernel.syscall_plan import Outcome, SyscallPlan

Mode = Literal["none", "loopback", "blackhole", "egress", "host"]
PROXY_PORT = 3128
"""Where the door is, on the sandbox's own loopback."""
_BACKLOG = 1024
_SET_FLAGS, _ADD_ROUTE = 0x8914, 0x890B
_DEVICE = struct.calcsize("@L16s16s16sHhLBB3hhP") - 8  # where struct rtentry has it
_MODES: tuple[Mode, ...] = ("none", "loopback", "blackhole", "host")
_VARIABLE = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Network:
    """What was chosen."""

    mode: Mode = "loopback"
    allow: tuple[str, ...] = ()
    """For ``egress``: as `AllowList` reads it, but for variables, which `filled` replaces."""

    @classmethod
    def parse(cls, value: Any) -> Network:
        """As people write it: one of four words, or the list of hosts that may be reached.

        Raises:
            ValueError: with a sentence that says what to write.
        """
        if isinstance(value, str):
            for word in _MODES:
                if value == word:
                    return cls(word)
            raise ValueError(
                f"'{value}' is not a network; write none, loopback, blackhole or host, "
                'or a list of hosts: ["pypi.org"]'
            )
        if not isinstance(value, Sequence):
            raise ValueError('a network is none, loopback, blackhole or host, or a list of hosts: ["pypi.org"]')
        if not value:
            raise ValueError("a list without hosts opens nothing; write loopback")
        AllowList(entry for entry in value if not _is_variable(entry))
        return cls("egress", tuple(value))

    def resolve_variables(self, variables: Mapping[str, str]) -> Network:
        """With the servers whose URLs these variables have in the place of each ``$NAME``.

        Raises:
            ValueError: a variable has something else.
        """
        if self.mode != "egress":
            return self
        hosts: dict[str, None] = {}
        for entry in self.allow:
            if not _is_variable(entry):
                hosts[entry] = None
            elif url := variables.get(entry[1:]):
                hosts |= dict.fromkeys(_url_hosts(entry[1:], url))
        return Network("egress", tuple(hosts)) if hosts else Network()

    @property
    def config_value(self) -> str | list[str]:
        """As people write it."""
        return list(self.allow) if self.mode == "egress" else self.mode

    @property
    def variables(self) -> dict[str, str]:
        """What tells programs of the door."""
        if self.mode != "egress":
            return {}
        # An http address for all: a SOCKS one, which works as well, is an error in clients that lack a package.
        listener = f"http://127.0.0.1:{PROXY_PORT}"
        named = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), listener) | {
            "no_proxy": "localhost,127.0.0.1,::1"
        }
        return named | {name.upper(): value for name, value in named.items()}


def _is_variable(entry: Any) -> bool:
    return isinstance(entry, str) and _VARIABLE.fullmatch(entry) is not None


def _url_hosts(name: str, url: str) -> list[str]:
    """Where a URL leads, as entries of a list."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or _PORTS[parts.scheme]
        if not host:
            raise KeyError(host)
    except (ValueError, KeyError):
        raise ValueError(f"the variable {name} names a server by its URL, like https://example.com/v1") from None
    # A name that leads to this machine opens nothing by itself, but whoever writes "localhost" means it.
    hosts = [host, "127.0.0.1", "::1"] if host == "localhost" else [host]
    return [f"[{one}]:{port}" if ":" in one else f"{one}:{port}" for one in hosts]


def configure(plan: SyscallPlan, mode: str) -> Outcome | None:
    """What a new network namespace needs. The door to the hosts on a list is what the call that comes back opens."""
    from aenv.isolation.kernel.syscall_plan import MemoryBlock  # here, so that reading a config.json does not load it

    if mode in ("none", "host"):
        return None
    control = plan.do("socket", socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0)
    up = MemoryBlock(struct.pack("16sh22x", b"lo", 1))
    plan.do("ioctl", control, _SET_FLAGS, up, what="switching the loopback on")
    plan.do("close", control)
    if mode == "blackhole":
        _add_blackhole_route(plan)
    if mode != "egress":
        return None
    listener = plan.do("socket", socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC, 0)
    address = struct.pack("=H2s4s8x", socket.AF_INET, PROXY_PORT.to_bytes(2, "big"), bytes((127, 0, 0, 1)))
    for name, *more in (("bind", MemoryBlock(address), len(address)), ("listen", _BACKLOG)):
        plan.do(str(name), listener, *more, what="opening the listener")
    return listener


def send_listener(listener: int, channel: int) -> None:
    """Give the door to whoever holds it, at the other end of this socket: it works from outside the namespace, and the
    sandbox keeps no descriptor of it.
    """
    with socket.socket(fileno=listener), socket.socket(fileno=os.dup(channel)) as outside:
        socket.send_fds(outside, [b"listener"], [listener])


def _add_blackhole_route(plan: SyscallPlan) -> None:
    """A route for all addresses into the loopback, where they are nobody's: who connects waits until it gives up."""
    from aenv.isolation.kernel.syscall_plan import MemoryBlock

    anywhere, up = struct.pack("=H14x", socket.AF_INET), 0x1
    # struct rtentry: the destination, no gateway, the mask; flags; the device's name
    route = struct.pack("@L16s16s16sHhLBB3hhPLLH6x", 0, anywhere, bytes(16), anywhere, up, *[0] * 12)
    control = plan.do("socket", socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0)
    plan.do("ioctl", control, _ADD_ROUTE, MemoryBlock(route, ((_DEVICE, b"lo\0"),)), what="a route to nowhere")
    plan.do("close", control)
