from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv.errors import ConfigError
from aenv.http.url import Planes, ServerUrl
from aenv.sdk.environment import make_mcp_url


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("localhost", "http://localhost:8081"),
        ("http://localhost", "http://localhost:8081"),
        ("http://localhost/", "http://localhost:8081"),
        ("127.0.0.1:7777", "http://127.0.0.1:7777"),
        ("http://127.0.0.1:7777", "http://127.0.0.1:7777"),
        ("https://h:8443/p/", "https://h:8443/p"),
        ("https://h", "https://h"),
        ("[::1]:9", "http://[::1]:9"),
        ("::1", "http://[::1]:8081"),
        ("unix:/run/a.sock", "unix:/run/a.sock"),
        ("unix:///run/a.sock", "unix:/run/a.sock"),
    ],
)
def test_any_scheme_port_and_path_is_kept(text: str, shown: str) -> None:
    assert str(ServerUrl.parse(text, default_port=8081)) == shown


@pytest.mark.parametrize("text", ["", "ftp://h", "http://", "http://h:port", "http://h:99999", "unix:relative"])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        ServerUrl.parse(text)


@pytest.mark.parametrize(
    ("text", "control", "data"),
    [
        ("http://service", "http://service:8080", "http://service:8081"),
        ("http://aenv-service/", "http://aenv-service:8080", "http://aenv-service:8081"),
        ("http://localhost:8080", "http://localhost:8080", "http://localhost:8081"),
        ("http://localhost:9000", "http://localhost:9000", "http://localhost:9000"),
        ("https://h:8443/p", "https://h:8443/p", "https://h:8443/p"),
        ("https://h", "https://h", "https://h"),
        ("unix:/run/a.sock", "unix:/run/a.sock", "unix:/run/a.sock"),
    ],
)
def test_a_plain_host_has_a_port_per_plane_and_a_full_url_one_address(text: str, control: str, data: str) -> None:
    planes = Planes.parse(text)
    assert (str(planes.control), str(planes.data)) == (control, data)


hosts = st.one_of(
    st.from_regex(r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?(\.[a-z]{2,5})?", fullmatch=True),
    st.ip_addresses().map(str),
)
urls = st.builds(
    ServerUrl,
    host=hosts,
    port=st.integers(1, 65535),
    tls=st.booleans(),
    prefix=st.from_regex(r"(/[a-z0-9_-]{1,8}){0,3}", fullmatch=True),
)


@given(urls)
def test_a_url_survives_being_written_and_read(url: ServerUrl) -> None:
    assert ServerUrl.parse(str(url)) == url


def test_make_mcp_url_keeps_the_scheme_port_and_path_of_a_url() -> None:
    assert make_mcp_url("http://h", 8081, "mcp") == "http://h:8081/mcp"
    assert make_mcp_url("https://h:444/x", 8081, "/mcp") == "https://h:444/x/mcp"
