"""Allow lists of hosts and networks."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv.isolation.network.allow_list import AllowList, EgressRefused, equivalent_addresses, is_public
from aenv.isolation.network.policy import Network


def named(entries: list[str], host: str, port: int = 443) -> bool:
    try:
        AllowList(entries).check_name(host, port)
    except EgressRefused:
        return False
    return True


def reached(entries: list[str], address: str, port: int = 443, behind: str | None = None) -> bool:
    try:
        AllowList(entries).check_address(ipaddress.ip_address(address), port, behind=behind)
    except EgressRefused:
        return False
    return True


@pytest.mark.parametrize(
    ("entry", "host", "port", "yes"),
    [
        ("index.example.com", "index.example.com", 443, True),
        ("index.example.com", "Index.Example.com.", 443, True),
        ("Index.EXAMPLE.com", "index.example.com", 443, True),
        ("index.example.com", "www.index.example.com", 443, False),
        ("index.example.com", "evilindex.example.com", 443, False),
        ("index.example.com", "index.example.com.evil.example", 443, False),
        ("*.example.com", "a.example.com", 443, True),
        ("*.example.com", "a.b.example.com", 443, True),
        ("*.example.com", "example.com", 443, False),
        ("*.example.com", "badexample.com", 443, False),
        ("*", "whatever.example", 443, True),
        ("index.example.com:443", "index.example.com", 443, True),
        ("index.example.com:443", "index.example.com", 80, False),
        ("bücher.example", "xn--bcher-kva.example", 443, True),
        ("10.0.0.0/8", "ten.example", 443, False),
    ],
)
def test_a_name_is_resolved_only_if_it_is_on_the_list(entry: str, host: str, port: int, yes: bool) -> None:
    assert named([entry], host, port) is yes


@pytest.mark.attack("egress")
@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "192.0.2.2", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fd00::2", "ff02::1", "::ffff:127.0.0.1",
        "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a00:1::",
    ],
)  # fmt: skip
def test_a_listed_name_does_not_open_private_addresses(address: str) -> None:
    assert not reached(["*"], address, behind="rebinding.example")
    assert not reached(["rebinding.example"], address, behind="rebinding.example")
    assert not reached(["*"], address)
    assert reached(["0.0.0.0/0", "::/0"], address)


INNER = {
    "this machine": "127.0.0.1", "any of this machine's": "127.200.3.4", "unspecified": "0.0.0.0",
    "link-local": "169.254.169.254", "private (10)": "10.1.2.3", "private (172)": "172.31.255.254",
    "private (192)": "192.168.1.1", "shared": "100.64.0.1", "multicast": "224.0.0.251", "reserved": "240.0.0.1",
}  # fmt: skip
"""IPv4 addresses that no name and no wildcard may open."""


def embedding(inner: str) -> dict[str, str]:
    """Return every form of IPv6 address that embeds this IPv4 address."""
    number = int(ipaddress.IPv4Address(inner))
    high, low, whole = number >> 16, number & 0xFFFF, f"{number:08x}"
    public = 0x08080808
    forms = {
        "mapped": f"::ffff:{inner}",
        "compatible": f"::{inner}",
        "translated (SIIT)": f"::ffff:0:{inner}",
        "6to4": f"2002:{high:x}:{low:x}::1",
        "6to4, with a subnet": f"2002:{high:x}:{low:x}:ffff:1234:5678:9abc:def0",
        "NAT64": f"64:ff9b::{inner}",
        "NAT64, local, /96": f"64:ff9b:1:abcd:0:1:{high:x}:{low:x}",
        "NAT64, local, /48": f"64:ff9b:1:{high:x}:{low >> 8:x}:{(low & 0xFF) << 8:x}::",
        "NAT64, local, /56": f"64:ff9b:1:ab{whole[:2]}:{whole[2:4]}:{whole[4:]}::",
        "NAT64, local, /64": f"64:ff9b:1:abcd:{whole[:2]}:{whole[2:6]}:{whole[6:]}00:0",
        "Teredo, the client": f"2001:0:808:808:0:0:{high ^ 0xFFFF:x}:{low ^ 0xFFFF:x}",
        "Teredo, the server": f"2001:0:{high:x}:{low:x}:0:0:{(public >> 16) ^ 0xFFFF:x}:{(public & 0xFFFF) ^ 0xFFFF:x}",
        "ISATAP, public": f"2600:1234::200:5efe:{high:x}:{low:x}",
        "ISATAP, private": f"2600:1234::5efe:{inner}",
        "ISATAP, link-local": f"fe80::5efe:{inner}",
    }
    return {kind: str(ipaddress.ip_address(text)) for kind, text in forms.items()}


@pytest.mark.attack("egress")
@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
@pytest.mark.parametrize("kind", embedding("10.0.0.1"))
def test_no_form_of_ipv6_leads_to_a_private_ipv4_address(kind: str, inner: str) -> None:
    address = embedding(inner)[kind]
    for entries in (["*"], ["*", "8.8.0.0/16", "2600::/16"], ["rebinding.example"]):
        assert not reached(entries, address, behind="rebinding.example"), address
    assert not reached(["*"], address), address
    assert reached(["0.0.0.0/0", "::/0"], address), address


@pytest.mark.parametrize("kind", embedding("10.0.0.1"))
def test_a_listed_ipv6_network_does_not_open_embedded_ipv4_addresses(kind: str) -> None:
    for inner in ("127.0.0.1", "169.254.169.254", "10.1.2.3"):
        assert not reached(["::/0"], embedding(inner)[kind]), kind
        assert not reached(["*", "::/0"], embedding(inner)[kind]), kind


@pytest.mark.parametrize("kind", ["mapped", "6to4", "NAT64", "ISATAP, public"])
def test_an_address_that_embeds_a_public_one_is_public(kind: str) -> None:
    assert reached(["*"], embedding("8.8.8.8")[kind])
    assert reached(["dns.example"], embedding("8.8.8.8")[kind], behind="dns.example")


@pytest.mark.attack("egress")
@pytest.mark.parametrize(
    "address",
    [
        "::", "::1", "::2", "100::1", "fc00::1", "fdff:ffff::1", "fe80::1", "febf::1", "fec0::1", "feff::1", "ff01::1",
        "ff02::1", "ff0e::1", "2001::1", "2001:2::1", "2001:10::1", "2001:20::1", "2001:db8::1", "3fff::1", "4000::1",
        "5f00::1", "64:ff9b:1::808:808", "64:ff9b:2::1", "e000::1",
    ],
)  # fmt: skip
def test_reserved_ipv6_addresses_are_private(address: str) -> None:
    assert not reached(["*"], address)
    assert not reached(["rebinding.example"], address, behind="rebinding.example")


@pytest.mark.attack("egress")
@pytest.mark.parametrize("address", ["2600::1%eth0", "fe80::1%eth0", "::1%lo", "fe80::1%1", "::ffff:8.8.8.8%lo"])
def test_an_address_with_a_zone_is_refused_even_when_its_network_is_listed(address: str) -> None:
    assert not reached(["*", "0.0.0.0/0", "::/0"], address)


def test_a_public_address_needs_a_name_or_a_network() -> None:
    assert not reached(["index.example.com"], "8.8.8.8")
    assert reached(["index.example.com"], "8.8.8.8", behind="index.example.com")
    assert reached(["*"], "8.8.8.8")
    assert reached(["8.8.8.0/24"], "8.8.8.8")
    assert reached(["8.8.8.8"], "8.8.8.8")
    assert not reached(["8.8.8.8:53"], "8.8.8.8", 443)
    assert reached(["[2001:4860::/32]:53"], "2001:4860::8888", 53)
    assert not reached(["[2001:4860::/32]:53"], "2001:4860::8888", 443)
    assert not reached(["*:80"], "8.8.8.8", 443)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("https://index.example.com", "without a scheme"),
        ("index.example.com/simple", "without a scheme"),
        ("10.0.0.1/8", "10.0.0.0/8"),
        ("index.example.com:http", "not a port"),
        ("index.example.com:0", "not a port"),
        ("a*.example.com", "neither a host name nor a network"),
        ("*.", "neither"),
        ("", "an entry is text"),
        ("two words", "neither"),
    ],
)
def test_an_invalid_entry_is_refused_with_a_hint(entry: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        AllowList([entry])


@pytest.mark.parametrize(
    ("value", "message"),
    [("egress", "a list of hosts"), ([], "loopback"), (3, "a list of hosts"), ("*", "a list of hosts"), ([3], "text")],
)
def test_an_invalid_network_is_refused_with_a_hint(value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Network.parse(value)


@pytest.mark.parametrize("value", ["none", "loopback", "blackhole", "host", ["index.example.com", "10.0.0.0/8"]])
def test_a_parsed_network_keeps_its_config_value(value: str | list[str]) -> None:
    assert Network.parse(value).config_value == value


@pytest.mark.parametrize(
    ("url", "opened"),
    [
        ("https://models.example/v1", ["index.example.com", "models.example:443"]),
        ("http://10.0.0.7:8000/v1", ["index.example.com", "10.0.0.7:8000"]),
        ("http://[fd00::7]/v1", ["index.example.com", "[fd00::7]:80"]),
        ("http://localhost:8000", ["index.example.com", "localhost:8000", "127.0.0.1:8000", "[::1]:8000"]),
        ("https://index.example.com/simple", ["index.example.com", "index.example.com:443"]),
        ("", ["index.example.com"]),
    ],
)
def test_a_variable_opens_the_host_of_its_url(url: str, opened: list[str]) -> None:
    network = Network.parse(["index.example.com", "$MODEL", "$OTHER"])
    assert network.resolve_variables({"MODEL": url, "UNNAMED": "http://10.0.0.1"}).config_value == opened
    AllowList(opened)


def test_unset_variables_open_nothing() -> None:
    assert Network.parse(["$MODEL"]).resolve_variables({}) == Network("loopback")
    assert Network.parse("host").resolve_variables({"MODEL": "http://10.0.0.1"}) == Network("host")


@pytest.mark.parametrize("url", ["models.example", "ftp://models.example", "http://", "http://x:y/", "10.0.0.0/8"])
def test_a_variable_without_a_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="the variable MODEL must be a URL"):
        Network.parse(["$MODEL"]).resolve_variables({"MODEL": url})


@given(st.ip_addresses())
def test_a_name_leads_to_public_addresses_only(address: ipaddress.IPv4Address) -> None:
    if reached(["*"], str(address), behind="any.example"):
        assert all(
            is_public(each) and each.is_global and not each.is_multicast for each in equivalent_addresses(address)[-1:]
        )
