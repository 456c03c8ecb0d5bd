"""Which hosts a list opens."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv.isolation.allow import AllowList, Refused, unwrapped
from aenv.isolation.network import Network


def named(entries: list[str], host: str, port: int = 443) -> bool:
    try:
        AllowList(entries).check_name(host, port)
    except Refused:
        return False
    return True


def reached(entries: list[str], address: str, port: int = 443, behind: str | None = None) -> bool:
    try:
        AllowList(entries).check_address(ipaddress.ip_address(address), port, behind=behind)
    except Refused:
        return False
    return True


@pytest.mark.parametrize(
    ("entry", "host", "port", "yes"),
    [
        ("pypi.org", "pypi.org", 443, True),
        ("pypi.org", "PyPI.org.", 443, True),
        ("PyPI.ORG", "pypi.org", 443, True),
        ("pypi.org", "www.pypi.org", 443, False),
        ("pypi.org", "evilpypi.org", 443, False),
        ("pypi.org", "pypi.org.evil.example", 443, False),
        ("*.example.com", "a.example.com", 443, True),
        ("*.example.com", "a.b.example.com", 443, True),
        ("*.example.com", "example.com", 443, False),
        ("*.example.com", "badexample.com", 443, False),
        ("*", "whatever.example", 443, True),
        ("pypi.org:443", "pypi.org", 443, True),
        ("pypi.org:443", "pypi.org", 80, False),
        ("bücher.example", "xn--bcher-kva.example", 443, True),
        ("10.0.0.0/8", "ten.example", 443, False),
    ],
)
def test_a_name_is_looked_up_only_when_it_is_on_the_list(entry: str, host: str, port: int, yes: bool) -> None:
    assert named([entry], host, port) is yes


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "192.0.2.2", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fd00::2", "ff02::1", "::ffff:127.0.0.1",
        "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a00:1::",
    ],
)  # fmt: skip
def test_a_name_does_not_open_what_is_private(address: str) -> None:
    assert not reached(["*"], address, behind="rebinding.example")
    assert not reached(["rebinding.example"], address, behind="rebinding.example")
    assert not reached(["*"], address)
    assert reached(["0.0.0.0/0", "::/0"], address)


def test_a_public_address_needs_a_name_or_a_network() -> None:
    assert not reached(["pypi.org"], "8.8.8.8")
    assert reached(["pypi.org"], "8.8.8.8", behind="pypi.org")
    assert reached(["*"], "8.8.8.8")
    assert reached(["8.8.8.0/24"], "8.8.8.8")
    assert reached(["8.8.8.8"], "8.8.8.8")
    assert not reached(["8.8.8.8:53"], "8.8.8.8", 443)
    assert reached(["[2001:4860::/32]:53"], "2001:4860::8888", 53)
    assert not reached(["[2001:4860::/32]:53"], "2001:4860::8888", 443)
    assert not reached(["*:80"], "8.8.8.8", 443)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("https://pypi.org", "without a scheme"),
        ("pypi.org/simple", "without a scheme"),
        ("10.0.0.1/8", "10.0.0.0/8"),
        ("pypi.org:http", "not a port"),
        ("pypi.org:0", "not a port"),
        ("a*.example.com", "neither a host name nor a network"),
        ("*.", "neither"),
        ("", "an entry is text"),
        ("two words", "neither"),
    ],
)
def test_an_entry_that_makes_no_sense_is_said(entry: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace(".", r"\.")):
        AllowList([entry])


@pytest.mark.parametrize(
    ("value", "said"),
    [("egress", "a list of hosts"), ([], "loopback"), (3, "a list of hosts"), ("*", "a list of hosts"), ([3], "text")],
)
def test_a_network_that_makes_no_sense_is_said(value: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Network.parse(value)


@pytest.mark.parametrize("value", ["none", "loopback", "blackhole", "host", ["pypi.org", "10.0.0.0/8"]])
def test_a_network_is_written_as_it_was_read(value: str | list[str]) -> None:
    assert Network.parse(value).written == value


@pytest.mark.parametrize(
    ("url", "opened"),
    [
        ("https://models.example/v1", ["pypi.org", "models.example:443"]),
        ("http://10.0.0.7:8000/v1", ["pypi.org", "10.0.0.7:8000"]),
        ("http://[fd00::7]/v1", ["pypi.org", "[fd00::7]:80"]),
        ("http://localhost:8000", ["pypi.org", "localhost:8000", "127.0.0.1:8000", "[::1]:8000"]),
        ("https://pypi.org/simple", ["pypi.org", "pypi.org:443"]),
        ("", ["pypi.org"]),
    ],
)
def test_a_variable_opens_the_server_whose_url_it_has(url: str, opened: list[str]) -> None:
    network = Network.parse(["pypi.org", "$MODEL", "$OTHER"])
    assert network.filled({"MODEL": url, "UNNAMED": "http://10.0.0.1"}).written == opened
    AllowList(opened)


def test_variables_without_servers_open_nothing() -> None:
    assert Network.parse(["$MODEL"]).filled({}) == Network("loopback")
    assert Network.parse("host").filled({"MODEL": "http://10.0.0.1"}) == Network("host")


@pytest.mark.parametrize("url", ["models.example", "ftp://models.example", "http://", "http://x:y/", "10.0.0.0/8"])
def test_a_variable_that_names_no_server_is_said(url: str) -> None:
    with pytest.raises(ValueError, match="the variable MODEL names a server by its URL"):
        Network.parse(["$MODEL"]).filled({"MODEL": url})


@given(st.ip_addresses())
def test_nothing_but_public_addresses_is_behind_a_name(address: ipaddress.IPv4Address) -> None:
    if reached(["*"], str(address), behind="any.example"):
        assert unwrapped(address).is_global
        assert not unwrapped(address).is_multicast
