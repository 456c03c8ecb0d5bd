"""Network policy of a sandbox.

``none``: no network, not even a loopback. ``loopback``: only a loopback of its own. ``blackhole``: the same, but
packets to other addresses are dropped and not refused, as behind a firewall. ``egress``: a loopback of its own, with an
HTTP and SOCKS5 proxy on it that reaches the hosts of an allow list (`aenv.isolation.network.egress_proxy`). ``host``:
the host's own network.
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
"""Port of the egress proxy on the sandbox's own loopback."""
_BACKLOG = 1024
_SET_FLAGS, _ADD_ROUTE = 0x8914, 0x890B
_DEVICE = struct.calcsize("@L16s16s16sHhLBB3hhP") - 8  # offset of rt_dev in struct rtentry
_MODES: tuple[Mode, ...] = ("none", "loopback", "blackhole", "host")
_VARIABLE = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Network:
    """Network policy chosen for a sandbox."""

    mode: Mode = "loopback"
    allow: tuple[str, ...] = ()
    """Allow list for ``egress``: entries of `AllowList`, or variables, which `resolve_variables` replaces."""

    @classmethod
    def parse(cls, value: Any) -> Network:
        """Parse the value of a config.json: one of four modes, or a list of hosts that may be reached.

        Raises:
            ValueError: the message says what to write.
        """
        if isinstance(value, str):
            for word in _MODES:
                if value == word:
                    return cls(word)
            raise ValueError(
                f"invalid network '{value}'; expected none, loopback, blackhole or host, "
                'or a list of hosts: ["index.example.com"]'
            )
        if not isinstance(value, Sequence):
            raise ValueError(
                'a network is none, loopback, blackhole or host, or a list of hosts: ["index.example.com"]'
            )
        if not value:
            raise ValueError("a list without hosts opens nothing; write loopback")
        AllowList(entry for entry in value if not _is_variable(entry))
        return cls("egress", tuple(value))

    def resolve_variables(self, variables: Mapping[str, str]) -> Network:
        """Replace each ``$NAME`` on the allow list with the host of the URL in that variable.

        Raises:
            ValueError: a variable has no URL in it.
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
        """Value that `parse` reads, as in a config.json."""
        return list(self.allow) if self.mode == "egress" else self.mode

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that point programs to the egress proxy."""
        if self.mode != "egress":
            return {}
        # Always an http URL: a SOCKS URL would work, but clients without a SOCKS package raise an error for it.
        proxy = f"http://127.0.0.1:{PROXY_PORT}"
        named = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), proxy) | {
            "no_proxy": "localhost,127.0.0.1,::1"
        }
        return named | {name.upper(): value for name, value in named.items()}


def _is_variable(entry: Any) -> bool:
    return isinstance(entry, str) and _VARIABLE.fullmatch(entry) is not None


def _url_hosts(name: str, url: str) -> list[str]:
    """Return the host of a URL as entries of an allow list."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or _PORTS[parts.scheme]
        if not host:
            raise KeyError(host)
    except (ValueError, KeyError):
        raise ValueError(f"the variable {name} must be a URL, like https://example.com/v1") from None
    # A name does not open addresses of this host by itself, but "localhost" is meant to.
    hosts = [host, "127.0.0.1", "::1"] if host == "localhost" else [host]
    return [f"[{one}]:{port}" if ":" in one else f"{one}:{port}" for one in hosts]


def configure(plan: SyscallPlan, mode: str) -> Outcome | None:
    """Plan the set-up of a new network namespace; return the call that opens the egress listener, if there is one."""
    from aenv.isolation.kernel.syscall_plan import MemoryBlock  # imported here: parsing a config.json needs none of it

    if mode in ("none", "host"):
        return None
    control = plan.do("socket", socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0)
    up = MemoryBlock(struct.pack("16sh22x", b"lo", 1))
    plan.do("ioctl", control, _SET_FLAGS, up, what="bringing the loopback up")
    plan.do("close", control)
    if mode == "blackhole":
        _add_blackhole_route(plan)
    if mode != "egress":
        return None
    listener = plan.do("socket", socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC, 0)
    address = struct.pack("=H2s4s8x", socket.AF_INET, PROXY_PORT.to_bytes(2, "big"), bytes((127, 0, 0, 1)))
    for name, *more in (("bind", MemoryBlock(address), len(address)), ("listen", _BACKLOG)):
        plan.do(str(name), listener, *more, what="opening the egress listener")
    return listener


def send_listener(listener: int, channel: int) -> None:
    """Send the egress listener over a channel to the engine. It works from outside the namespace; the sandbox keeps no
    descriptor of it.
    """
    with socket.socket(fileno=listener), socket.socket(fileno=os.dup(channel)) as outside:
        socket.send_fds(outside, [b"listener"], [listener])


def _add_blackhole_route(plan: SyscallPlan) -> None:
    """Route all addresses to the loopback, where no host has them: connecting times out."""
    from aenv.isolation.kernel.syscall_plan import MemoryBlock

    anywhere, up = struct.pack("=H14x", socket.AF_INET), 0x1
    # struct rtentry: the destination, no gateway, the mask; flags; the device's name
    route = struct.pack("@L16s16s16sHhLBB3hhPLLH6x", 0, anywhere, bytes(16), anywhere, up, *[0] * 12)
    control = plan.do("socket", socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0)
    plan.do("ioctl", control, _ADD_ROUTE, MemoryBlock(route, ((_DEVICE, b"lo\0"),)), what="adding the blackhole route")
    plan.do("close", control)
