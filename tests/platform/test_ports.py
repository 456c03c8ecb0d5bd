"""Ports inside instances: signed URLs, WebSocket both ways, and no access for others."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import websockets

from aenv.errors import EnvironmentError, Forbidden
from aenv.http.messages import Request
from aenv.platform.gateway.ports import Ports
from aenv.sdk.environment import Environment
from tests.certificates import self_signed
from tests.conftest import fetch, run
from tests.platform.conftest import publish
from tests.platform.parts import Served, serving
from tests.storage.valkey import started

Tokens = Callable[..., str]

ENV = '''
import asyncio, base64, hashlib, json, struct, threading
from aenv import register_tool


async def serve(reader, writer):
    """Echo WebSocket messages; answer any other request with its head and body."""
    head = (await reader.readuntil(b"\\r\\n\\r\\n")).decode("latin-1")
    line, *rest = head.split("\\r\\n")
    headers = {name.lower(): value for name, _, value in (each.partition(": ") for each in rest if each)}
    if headers.get("upgrade") == "websocket" and "/refused" not in line:
        key = headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        writer.write(f"HTTP/1.1 101 Switching Protocols\\r\\nupgrade: websocket\\r\\nconnection: Upgrade\\r\\n"
                     f"sec-websocket-accept: {accept}\\r\\nSet-Cookie: a=b\\r\\n"
                     f"Clear-Site-Data: \\"*\\"\\r\\n\\r\\n".encode())
        try:
            while True:
                kind, size = await reader.readexactly(2)
                size &= 127
                if size == 126:
                    size, = struct.unpack(">H", await reader.readexactly(2))
                elif size == 127:
                    size, = struct.unpack(">Q", await reader.readexactly(8))
                mask = await reader.readexactly(4)
                data = bytes(b ^ mask[i % 4] for i, b in enumerate(await reader.readexactly(size)))
                length = bytes([size]) if size < 126 else bytes([126]) + struct.pack(">H", size)
                writer.write(bytes([kind]) + length + data)
                if kind & 15 == 8:
                    break
        except asyncio.IncompleteReadError:
            state["hung_up"] = True
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        answer = json.dumps({"line": line, "headers": headers, "body": body.decode()}).encode()
        writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-type: application/json\\r\\nset-cookie: a=b\\r\\n"
                     b"strict-transport-security: max-age=9\\r\\nnel: {}\\r\\nAlt-Svc: h2=\\":1\\"\\r\\n"
                     b"content-length: %d\\r\\nconnection: close\\r\\n\\r\\n" % len(answer) + answer)
    writer.close()

state = {"hung_up": False}

@register_tool
def listen() -> int:
    """Serve on a port of this instance, and return its number."""
    ready, port = threading.Event(), []

    async def main():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port.append(server.sockets[0].getsockname()[1])
        ready.set()
        await server.serve_forever()

    threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()
    ready.wait()
    return port[0]

@register_tool
def hung_up() -> bool:
    return state["hung_up"]
'''


@pytest.fixture(scope="module")
def platform(published: Path) -> Iterator[Served]:
    asyncio.run(publish(published, "web", ENV))
    with serving(published, "--prefix", "/aenv") as served:
        yield served


def get(url: str, data: bytes | None = None, **headers: str) -> tuple[int, dict[str, str], Any]:
    request = urllib.request.Request(url, data, {name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, {k.lower(): v for k, v in answer.headers.items()}, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, {}, json.loads(error.read())


async def opened(env: Environment) -> tuple[int, str]:
    port: int = (await env.call_tool("listen")).data
    return port, await env.presign_url(port)


def test_a_signed_url_reaches_the_port_without_a_token(platform: Served, tokens: Tokens) -> None:
    async def main() -> None:
        async with platform.environment("web", tokens("ann")) as env:
            port, url = await opened(env)
            assert url.startswith(f"{platform.url}/port/web-")
            status, headers, said = await asyncio.to_thread(
                get, f"{url}a/b?c=d", b"body", Authorization="Basic eDp5", Cookie="mine=1", X_Own="yes"
            )
            assert status == 200
            assert (said["line"], said["body"]) == ("POST /a/b?c=d HTTP/1.1", "body")
            assert said["headers"]["host"] == f"localhost:{port}"
            assert said["headers"]["authorization"] == "Basic eDp5"  # forwarded: it is for the server there
            assert said["headers"]["x-own"] == "yes"
            assert "cookie" not in said["headers"]
            assert not {"set-cookie", "strict-transport-security", "nel", "alt-svc"} & {*headers}
            assert headers["content-security-policy"].startswith("sandbox")
            assert "allow-same-origin" not in headers["content-security-policy"]
            # The same path with a token, which is not forwarded.
            name = (await env.get_env_info())["instance_id"]
            own = f"{platform.url}/instance/{name}/port/{port}/x"
            status, _, said = await asyncio.to_thread(get, own, Authorization=f"Bearer {tokens('ann')}")
            assert (status, said["line"]) == (200, "GET /x HTTP/1.1")
            assert "authorization" not in said["headers"]
            assert (await asyncio.to_thread(get, own))[0] == 401
            assert (await asyncio.to_thread(get, own, Authorization=f"Bearer {tokens('bob')}"))[0] == 403
            closed = await env.presign_url(1)
            status, _, said = await asyncio.to_thread(get, closed)
            assert (status, said["error_code"], said["details"]["sent"]) == (502, "unreachable", False)
            assert "nothing listens on port 1" in said["message"]
            with pytest.raises(EnvironmentError):
                await env.presign_url(70000)
        status, _, said = await asyncio.to_thread(get, url)
        assert status in (404, 410)

    run(main())


def test_a_signed_url_gives_access_to_nothing_else(platform: Served, tokens: Tokens) -> None:
    async def main() -> None:
        async with platform.environment("web", tokens("ann")) as env:
            port, url = await opened(env)
            for wrong in (
                url.replace(f"/{port}/", f"/{port + 1}/"),
                re.sub(r"web-\w+", "web-00000000", url),
                re.sub(r"/(\d{10})/", lambda found: f"/{int(found[1]) + 60}/", url),
                url[:-2] + ("0" if url[-2] != "0" else "1") + "/",
                f"{platform.url}/port/x",
                f"{platform.url}/port/",
                f"{platform.url}/port/../env-instance/list",
            ):
                status, _, said = await asyncio.to_thread(get, wrong)
                assert (status, said["error_code"]) == (403, "forbidden"), wrong
            body = {"port": port, "expiration_time_in_minutes": 5}
            name = (await env.get_env_info())["instance_id"]
            path = f"/env-instance/{name}/presign-url"
            for user, role, refused in (("bob", "user", 404), ("reader", "read-only", 403)):
                header = {"authorization": f"Bearer {tokens(user, role)}"}
                assert (await asyncio.to_thread(fetch, platform.url, path, body, headers=header))[0] == refused

    run(main())


def test_a_signed_url_expires_and_has_the_requested_address() -> None:
    now = 1_000_000.0
    ports = Ports(b"key", prefix="/p", clock=lambda: now)
    request = Request()
    request.headers = [(b"host", b"example.com:8443"), (b"x-forwarded-proto", b"https")]
    url = ports.url("web-1", 80, 5, request)
    assert url.startswith("https://example.com:8443/p/port/web-1/80/1000300/")
    request.target = url.removeprefix("https://example.com:8443/p").encode() + b"x?y"
    assert ports.read(request) == ("web-1", (80, b"/x?y"))
    now += 301
    with pytest.raises(Forbidden, match="expired"):
        ports.read(request)
    request.headers = [(b"host", b"evil\"'><script>")]
    assert ports.url("web-1", 80, 5, request).startswith("http://localhost/p/port/")
    assert Ports(b"key", public_url="https://a.b/c/").url("w", 1, 1, request).startswith("https://a.b/c/port/w/1/")


def test_websockets_go_both_ways_and_end_with_either_side(platform: Served, tokens: Tokens) -> None:
    async def main() -> None:
        async with platform.environment("web", tokens("ann")) as env:
            port, url = await opened(env)
            async with websockets.connect(url.replace("http://", "ws://"), max_size=None) as socket:
                assert socket.response is not None
                assert not {"set-cookie", "clear-site-data"} & {name.lower() for name in socket.response.headers}
                for text in ("hello", "x" * 60_000, "again"):
                    await socket.send(text)
                    assert await socket.recv() == text
            name = (await env.get_env_info())["instance_id"]
            own = f"{platform.url}/instance/{name}/port/{port}/".replace("http://", "ws://")
            header = {"authorization": f"Bearer {tokens('ann')}"}
            async with websockets.connect(own, additional_headers=header) as socket:
                await socket.send("with a token")
                assert await socket.recv() == "with a token"
                socket.transport.abort()  # like a client that is killed
            while not (await env.call_tool("hung_up")).data:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            for where, more, refused in (
                (own, {}, 401),
                (own, {"authorization": f"Bearer {tokens('bob')}"}, 403),
                (own + "refused", header, 200),
                (own.replace(f"/{port}/", "/1/"), header, 502),
                (own.partition("/port/")[0] + "/mcp", header, None),
            ):
                with pytest.raises(websockets.InvalidStatus) as caught:
                    async with websockets.connect(where, additional_headers=more):
                        pass
                assert refused in (None, caught.value.response.status_code), where
            async with websockets.connect(url.replace("http://", "ws://")) as socket:
                await env.release()
                with pytest.raises(websockets.ConnectionClosed):
                    await socket.recv()

    run(main())


def test_websockets_go_over_tls(platform: Served, published: Path, tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path)
    with serving(published, "--tls-cert", str(cert), "--tls-key", str(key)) as served:

        async def main() -> None:
            async with served.environment("web", platform.first_token) as env:
                _, url = await opened(env)
                trusting = ssl.create_default_context(cafile=cert)
                where = url.replace("https://", "wss://")
                async with websockets.connect(where, ssl=trusting, max_size=None) as socket:
                    for text in ("hello", "x" * 60_000):
                        await socket.send(text)
                        assert await socket.recv() == text

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SSL_CERT_FILE", str(cert))
            run(main())


def test_urls_and_websockets_work_on_every_server_of_a_platform(
    published: Path, tmp_path: Path, platform: Served
) -> None:
    with started(tmp_path) as valkey:
        url = valkey.url()
        with serving(published, "--store", url) as one, serving(published, "--store", url) as other:

            async def main() -> None:
                async with one.environment("web", one.first_token) as env:
                    _, signed = await opened(env)
                    elsewhere = signed.replace(one.url, other.url)
                    status, _, said = await asyncio.to_thread(get, elsewhere + "x")
                    assert (status, said["line"]) == (200, "GET /x HTTP/1.1")
                    async with websockets.connect(elsewhere.replace("http://", "ws://")) as socket:
                        await socket.send("there")
                        assert await socket.recv() == "there"

            run(main())
