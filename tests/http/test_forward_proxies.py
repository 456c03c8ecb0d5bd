"""Models behind a forward proxy: the variables that name it, plain requests, tunnels, and refusals."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aenv.errors import ConfigError
from aenv.http.forward_proxies import ForwardProxy, proxy_for
from aenv.http.url import ServerUrl
from aenv.rollout import ModelEndpoint, ModelRequest, ModelUnavailable, Reply
from aenv.rollout.capture import CaptureProxy, Upstream
from tests.certificates import self_signed
from tests.conftest import run
from tests.rollout.model_server import chat, model_server

TALK = [{"role": "user", "content": "Hello."}]


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@asynccontextmanager
async def tunnelling(to: int, answer: bytes = b"HTTP/1.1 200 OK\r\n\r\n") -> AsyncIterator[tuple[str, list[bytes]]]:
    """Serve a proxy whose tunnels all lead to a port of this machine."""
    heads: list[bytes] = []

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            target.write(data)
        target.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        if b" 200 " in answer:
            behind, into = await asyncio.open_connection("127.0.0.1", to)
            await asyncio.gather(copy(reader, into), copy(behind, writer), return_exceptions=True)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads


async def asked(url: str) -> Reply:
    model = ModelEndpoint("m", url, key="secret-key", stream=False, retries=0)
    try:
        return await model.complete(ModelRequest(TALK))
    finally:
        model.close()


def test_the_usual_variables_choose_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, secure = ServerUrl.parse("http://model.test:8000/v1"), ServerUrl.parse("https://model.test/v1")
    assert proxy_for(plain) is None
    monkeypatch.setenv("HTTP_PROXY", "proxy.test:3128")
    monkeypatch.setenv("https_proxy", "http://ann:p%40ss@other.test:8080/")
    assert proxy_for(plain) == ForwardProxy("proxy.test", 3128)
    assert proxy_for(secure) == ForwardProxy("other.test", 8080, "Basic YW5uOnBAc3M=")
    for here in ("http://127.0.0.1:8000", "http://localhost:8000", "http://[::1]:8000", "unix:/run/m.sock"):
        assert proxy_for(ServerUrl.parse(here)) is None
    monkeypatch.setenv("NO_PROXY", "internal.test,model.test")
    assert proxy_for(plain) is None
    monkeypatch.setenv("NO_PROXY", "internal.test")
    monkeypatch.setenv("HTTP_PROXY", "socks5://proxy.test:1080")
    with pytest.raises(ConfigError, match="invalid proxy"):
        proxy_for(plain)


def test_a_plain_request_names_the_server_to_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with model_server(lambda body, number: chat("hi")) as proxy:
            place = proxy.url.removeprefix("http://").removesuffix("/v1")
            monkeypatch.setenv("HTTP_PROXY", f"http://ann:secret@{place}")
            assert (await asked("http://model.test:8000/v1")).text == "hi"
            assert proxy.paths == ["http://model.test:8000/v1/chat/completions"]
            assert proxy.headers[0]["host"] == "model.test:8000"
            assert proxy.headers[0]["proxy-authorization"].startswith("Basic ")

    run(main())


def test_https_goes_through_a_tunnel_and_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = self_signed(tmp_path, "server", "model.test")
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(cert, key)

    async def main() -> None:
        async with (
            model_server(lambda body, number: chat("hi"), served) as server,
            tunnelling(ServerUrl.parse(server.url).port) as (url, heads),
        ):
            monkeypatch.setenv("HTTPS_PROXY", url)
            with pytest.raises(ModelUnavailable, match="certificate"):
                await asked("https://model.test/v1")
            monkeypatch.setenv("SSL_CERT_FILE", str(cert))
            assert (await asked("https://model.test/v1")).text == "hi"
            assert heads[-1].startswith(b"CONNECT model.test:443 HTTP/1.1\r\n")
            assert b"secret-key" not in b"".join(heads)
            assert server.headers[-1]["authorization"] == "Bearer secret-key"

    run(main())


def test_a_proxy_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with tunnelling(1, b"HTTP/1.1 403 Forbidden\r\n\r\n") as (url, _):
            monkeypatch.setenv("HTTPS_PROXY", url)
            with pytest.raises(ModelUnavailable, match=r"refused a tunnel to model\.test:443"):
                await asked("https://model.test/v1")

    run(main())


def test_the_capture_proxy_uses_the_forward_proxy_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with model_server(lambda body, number: chat("hi")) as forward:
            monkeypatch.setenv("HTTP_PROXY", forward.url.removesuffix("/v1"))
            async with CaptureProxy(Upstream("http://model.test/v1", "upstream-key")) as proxy:
                session = proxy.open()
                assert (await asked(session.openai_url)).text == "hi"
            assert forward.paths == ["http://model.test/v1/chat/completions"]
            assert forward.headers[0]["authorization"] == "Bearer upstream-key"

    run(main())
