"""Where a sandbox may connect to: host names, wildcards and networks, each with a port if only that one is meant.

A name is looked up only when it is on the list, since looking names up is a way out, too. An address behind a name
must be a public one, or lie in a network that the list names: else a name under somebody's control would lead to the
machine's own services.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
ANYTHING = "*"


class Refused(Exception):
    """Not allowed; the message says why."""


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str | None
    """``example.com``, ``*.example.com`` or ``*``."""
    network: Network | None
    port: int | None

    def names(self, host: str, port: int) -> bool:
        if self.name is None or self.port not in (None, port):
            return False
        return self.name in (ANYTHING, host) or (self.name.startswith("*.") and host.endswith(self.name[1:]))

    def holds(self, address: Address, port: int) -> bool:
        return self.network is not None and self.port in (None, port) and address in self.network


class AllowList:
    """What may be reached."""

    def __init__(self, entries: Iterable[str]) -> None:
        """Raises ValueError, with a sentence, for an entry that makes no sense."""
        self.texts = list(entries)
        self._entries = [_parse(text) for text in self.texts]

    @property
    def networks(self) -> list[Network]:
        """Those on the list."""
        return [entry.network for entry in self._entries if entry.network is not None]

    def check_name(self, host: str, port: int) -> None:
        """Raises Refused unless this name may be looked up."""
        if not any(entry.names(normal(host), port) for entry in self._entries):
            raise Refused(f"{host}:{port} is not on the list of what this environment may reach")

    def check_address(self, address: Address, port: int, *, behind: str | None = None) -> None:
        """Raises Refused unless this address may be connected to. ``behind``: the listed name that led to it."""
        address = unwrapped(address)
        if self.has_network(address, port):
            return
        named = behind is not None or any(
            entry.name == ANYTHING and entry.port in (None, port) for entry in self._entries
        )
        if not named:
            raise Refused(f"{address}:{port} is not on the list of what this environment may reach")
        if not is_public(address):
            found = f"{behind} is {address}, which" if behind else str(address)
            raise Refused(f"{found} is a private address; only a network on the list, like {address}, opens it")

    def has_network(self, address: Address, port: int) -> bool:
        """Whether a network on the list holds this address."""
        return any(entry.holds(address, port) for entry in self._entries)


def is_public(address: Address) -> bool:
    """Whether it is out in the internet, and not this machine, its network or the cloud's metadata."""
    return address.is_global and not address.is_multicast


def unwrapped(address: Address) -> Address:
    """The IPv4 address that some IPv6 addresses stand for."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        return inner or address
    return address


def normal(host: str) -> str:
    """A name as names are compared."""
    host = host.rstrip(".").lower()
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode()
    except UnicodeError:
        return host


def _parse(text: str) -> _Entry:
    if not isinstance(text, str) or not text.strip():
        raise ValueError("an entry is text, like pypi.org, *.example.com or 10.0.0.0/8")
    host, port = _split(text.strip())
    try:
        return _Entry(None, ipaddress.ip_network(host), port)
    except ValueError as error:
        if "host bits set" in str(error):
            raise ValueError(f"'{text}': write the network as {ipaddress.ip_network(host, strict=False)}") from None
    name = normal(host)
    if host != ANYTHING and not _NAME.fullmatch(name.removeprefix("*.")):
        hint = "the host alone, without a scheme and a path" if "/" in host else "it like pypi.org or 10.0.0.0/8"
        raise ValueError(f"'{text}' is neither a host name nor a network; write {hint}")
    return _Entry(name, None, port)


def _split(text: str) -> tuple[str, int | None]:
    """Host and port; an IPv6 address with a port has brackets."""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") == 1 and "//" not in text:
        host, _, port = text.partition(":")
    else:
        return text, None
    if not port:
        return host, None
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"'{text}': '{port}' is not a port")
    return host, int(port)
