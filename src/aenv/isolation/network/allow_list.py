"""Allow list of a sandbox's outgoing connections: host names, wildcards and networks, each with an optional port.

A name is resolved only if it is on the list, since DNS queries can carry data out, too. The address of a listed name
must be public or in a listed network: otherwise a name under an attacker's control could lead to services of this host.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_HOST_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*")
ANY_HOST = "*"
_PRIVATE = [
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
        "224.0.0.0/3",
    )
]  # fmt: skip
"""IPv4 networks that are not public. Listed here because `ipaddress` classifies them differently between releases."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_PUBLIC = [ipaddress.IPv6Network("2000::/3"), _NAT64]
_RESERVED = [ipaddress.IPv6Network(text) for text in ("2001::/23", "2001:db8::/32", "3fff::/20")]
"""Public IPv6 networks, and the reserved ones within them, which include Teredo and documentation prefixes."""
_IN_LAST_WORD = [ipaddress.IPv6Network(text) for text in ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96")]
"""IPv6 networks whose last 32 bits are an IPv4 address: compatible, mapped, translated (SIIT), NAT64."""
_TEREDO = ipaddress.IPv6Network("2001::/32")
_6TO4 = ipaddress.IPv6Network("2002::/16")
_NAT64_LOCAL = ipaddress.IPv6Network("64:ff9b:1::/48")
_ISATAP, _ISATAP_MASK = 0x00005EFE, 0xFCFFFFFF


class EgressRefused(Exception):
    """The connection is not allowed; the message says why."""


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str | None
    """``example.com``, ``*.example.com`` or ``*``."""
    network: Network | None
    port: int | None

    def matches_name(self, host: str, port: int) -> bool:
        if self.name is None or self.port not in (None, port):
            return False
        return self.name in (ANY_HOST, host) or (self.name.startswith("*.") and host.endswith(self.name[1:]))

    def matches_address(self, address: Address, port: int) -> bool:
        return self.network is not None and self.port in (None, port) and address in self.network


class AllowList:
    """Parsed allow list of hosts and networks."""

    def __init__(self, entries: Iterable[str]) -> None:
        """Parse the entries.

        Raises:
            ValueError: an entry is neither a host name nor a network; the message says what to write.
        """
        self.texts = list(entries)
        self._entries = [_parse(text) for text in self.texts]

    @property
    def networks(self) -> list[Network]:
        """Networks on the list."""
        return [entry.network for entry in self._entries if entry.network is not None]

    def check_name(self, host: str, port: int) -> None:
        """Raise `EgressRefused` unless this name may be resolved."""
        if not any(entry.matches_name(normalize_host(host), port) for entry in self._entries):
            raise EgressRefused(f"{host}:{port} is not on the list of what this environment may reach")

    def check_address(self, address: Address, port: int, *, behind: str | None = None) -> None:
        """Raise `EgressRefused` unless this address may be connected to. ``behind``: the listed name it belongs to."""
        if getattr(address, "scope_id", None):
            raise EgressRefused(f"{address} names a network interface of this machine")
        first, *others = equivalent_addresses(address)
        listed = self.lists_address(first, port) or (others and all(self.lists_address(each, port) for each in others))
        named = behind is not None or any(
            entry.name == ANY_HOST and entry.port in (None, port) for entry in self._entries
        )
        if not listed and not named:
            raise EgressRefused(f"{first}:{port} is not on the list of what this environment may reach")
        for each in others if listed else (first, *others):
            if not is_public(each) and not self.lists_address(each, port):
                found = f"{behind} is {first}, which" if behind else str(first)
                found = found if each == first else f"{found} embeds {each}, which"
                raise EgressRefused(f"{found} is a private address; only a network on the list, like {each}, opens it")

    def lists_address(self, address: Address, port: int) -> bool:
        """Return True if a network on the list contains this address."""
        return any(entry.matches_address(address, port) for entry in self._entries)


def is_public(address: Address) -> bool:
    """Return True for a public internet address: not this host, its network or a cloud's metadata service."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _PRIVATE)
    return any(address in network for network in _PUBLIC) and not any(address in network for network in _RESERVED)


def equivalent_addresses(address: Address) -> list[Address]:
    """Return an address and the IPv4 addresses embedded in it, to which a router or the kernel may send instead.

    An IPv4-mapped address counts as IPv4 only. A network-specific NAT64 prefix cannot be told from other public
    addresses.
    """
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    return [address, *dict.fromkeys(map(ipaddress.IPv4Address, _embedded_ipv4(address)))]


def _embedded_ipv4(address: ipaddress.IPv6Address) -> Iterator[int]:
    number = int(address)
    last = number & 0xFFFFFFFF
    if any(address in network for network in _IN_LAST_WORD):
        yield last
    if address in _6TO4:
        yield number >> 80 & 0xFFFFFFFF
    if address in _TEREDO:
        yield number >> 64 & 0xFFFFFFFF  # its server
        yield last ^ 0xFFFFFFFF  # its client
    if address in _NAT64_LOCAL:
        yield from _rfc6052_ipv4(number)
    if number >> 32 & _ISATAP_MASK == _ISATAP:
        yield last


def _rfc6052_ipv4(number: int) -> Iterator[int]:
    """Yield the IPv4 addresses of RFC 6052: after a prefix of 48, 56, 64 or 96 bits, split around 8 zero bits."""
    if last := number & 0xFFFFFFFF:
        yield last
    suffix = number & (1 << 56) - 1
    for before in (16, 8, 0):  # bits of the IPv4 address in the upper 64 bits
        after = 32 - before
        if number >> 56 & 0xFF == 0 and suffix & (1 << 56 - after) - 1 == 0:
            yield (number >> 64 & (1 << before) - 1) << after | suffix >> 56 - after


def normalize_host(host: str) -> str:
    """Return a host name in the form used for comparison: lower case, IDNA, without a trailing dot."""
    host = host.rstrip(".").lower()
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode()
    except UnicodeError:
        return host


def _parse(text: str) -> _Entry:
    if not isinstance(text, str) or not text.strip():
        raise ValueError("an entry is text, like index.example.com, *.example.com or 10.0.0.0/8")
    host, port = _split(text.strip())
    try:
        return _Entry(None, ipaddress.ip_network(host), port)
    except ValueError as error:
        if "host bits set" in str(error):
            raise ValueError(f"'{text}': write the network as {ipaddress.ip_network(host, strict=False)}") from None
    name = normalize_host(host)
    if host != ANY_HOST and not _HOST_NAME.fullmatch(name.removeprefix("*.")):
        hint = (
            "the host alone, without a scheme and a path" if "/" in host else "it like index.example.com or 10.0.0.0/8"
        )
        raise ValueError(f"'{text}' is neither a host name nor a network; write {hint}")
    return _Entry(name, None, port)


def _split(text: str) -> tuple[str, int | None]:
    """Split an entry into host and port; an IPv6 address with a port has brackets."""
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
