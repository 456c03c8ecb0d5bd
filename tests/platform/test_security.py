"""Attacks on a shared platform: none succeeds, and no secret is logged."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aenv.errors import NotFound
from aenv.http import server_connection
from aenv.http.messages import Request, Response
from aenv.http.server import HttpServer
from aenv.http.url import ServerUrl
from aenv.platform.openapi import OPERATIONS
from aenv.sdk.environment import Environment
from tests.conftest import fetch, run
from tests.platform.conftest import publish
from tests.platform.parts import Served, serving
from tests.waiting import wait_while

Tokens = Callable[..., str]


@pytest.fixture(scope="module")
def platform(published: Path) -> Iterator[Served]:
    """A platform with all logging turned on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AENV_LOG_LEVEL", "DEBUG")
        with serving(published) as served:
            yield served


@pytest.fixture(scope="module")
def made(platform: Served, tokens: Tokens) -> dict[str, Any]:
    """An instance of ann's."""
    status, body = fetch(platform.url, "/env-instance", {"envName": "counter"}, headers=bearer(tokens("ann")))
    assert status == 200
    found: dict[str, Any] = body["data"]
    return found


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def raw(platform: Served, *parts: bytes) -> bytes:
    """Send exactly these bytes; return the response, up to its end or that of the connection."""
    url = ServerUrl.parse(platform.url)
    with socket.create_connection((url.host, url.port), 30) as wire:
        for part in parts:
            wire.sendall(part)
        wire.settimeout(10)
        answer = b""
        while b"\r\n\r\n" not in answer:
            data = wire.recv(65536)
            if not data:
                break
            answer += data
        return answer


def asked(method: str, path: str, name: str) -> str:
    """Return a path of a route for that instance, with valid parameters."""
    query = "?path=/tmp/x" if path.endswith(("/files", "/archive")) else ""
    return re.sub(r"\{\w+\}", "0000" if "/tokens" in path else name, path) + query


ROUTES = [(each.method, each.path, each.needs) for each in OPERATIONS]


@pytest.mark.parametrize(("method", "path", "needs"), ROUTES)
def test_every_route_requires_a_valid_token_the_right_role_and_an_own_instance(
    platform: Served, tokens: Tokens, made: dict[str, Any], spent: str, method: str, path: str, needs: str
) -> None:
    where, body = asked(method, path, made["id"]), None if method in ("GET", "DELETE") else {}

    def ask(headers: dict[str, str]) -> tuple[int, Any]:
        return fetch(platform.url, where, body, method=method, headers=headers)

    bad = ("aenv_0_0", spent, "", "x" * 5000, tokens("ann")[:-1], tokens("ann") + "x", "aenv_../../etc_x", "\xff\xfe")
    for headers in ({}, *(bearer(token) for token in bad), {"authorization": f"Basic {tokens('ann')}"}):
        status, said = ask(headers)
        assert (status, said["error_code"]) == (401, "unauthorized"), headers
    if needs in ("user", "admin"):
        assert ask(bearer(tokens("ann-reads", "read-only")))[0] in (403, 404)
    if needs == "admin":
        assert ask(bearer(tokens("ann")))[0] == 403
    creates = (method, path) == ("PUT", "/trajectories/{id}")  # an episode of one's own, whatever others call theirs
    if "{id}" in path and needs != "admin" and not creates:
        status, said = ask(bearer(tokens("bob")))
        assert (status, said["error_code"]) == (404, "not_found")
    assert fetch(platform.url, f"/env-instance/{made['id']}", headers=bearer(tokens("ann")))[0] == 200


@pytest.fixture(scope="module")
def spent(platform: Served) -> str:
    """An expired token."""
    request = {"user": "ann", "role": "admin", "expires_in": 1}
    status, body = fetch(platform.url, "/tokens", request, headers=bearer(platform.first_token))
    assert status == 200
    token = str(body["data"]["token"])
    wait_while(lambda: fetch(platform.url, "/env-instance/list", headers=bearer(token))[0] != 401, "it is still valid")
    return token


@pytest.mark.parametrize(
    "path",
    [
        "/env-instance/..%2f..%2fetc%2fpasswd",
        "/env-instance/../../etc/passwd",
        "/env-instance/%2e%2e/list/../list",
        "/env-instance/%00",
        "/env-instance/%ff%fe",
        "/env-instance/a%0d%0ax:%20y",
        "/env-instance/*",
        "/instance/../env-instance/list",
        "/instance/%2e%2e/env-instance/list",
        "/instance//mcp",
        "/instance/..%2f..%2f/mcp",
        "/instance/a%0d%0ahost:%20evil/mcp",
        "/port/..%2f..%2fetc/80/9999999999/" + "0" * 64 + "/",
        "/tokens/..%2fadmin",
    ],
)
def test_an_id_that_is_a_path_reaches_nothing(platform: Served, tokens: Tokens, path: str) -> None:
    status, said = fetch(platform.url, path, headers=bearer(tokens("ann")))
    assert status in (400, 403, 404), said
    assert said["success"] is False


def test_no_file_of_the_host_is_reached_through_an_instance(platform: Served, tokens: Tokens, made: Any) -> None:
    secret = platform.data / "platform" / "platform.db"
    assert secret.exists()
    for path in (str(secret), f"/proc/self/root{secret}", f"/proc/1/root{secret}", f"/tmp/../../../..{secret}"):
        for route in ("files", "archive"):
            where = f"/env-instance/{made['id']}/{route}?path={path}"
            assert fetch(platform.url, where, headers=bearer(tokens("ann")))[0] in (403, 404), path


def test_no_address_from_a_caller_is_connected_to(platform: Served, tokens: Tokens, made: dict[str, Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.5)
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        token = f"authorization: Bearer {tokens('ann')}\r\n"
        for line, headers in (
            (f"GET http://{host}/ HTTP/1.1", ""),
            (f"GET http://{host}/instance/{made['id']}/health HTTP/1.1", ""),
            (f"GET http://{host}/health HTTP/1.1", f"AEnvCore-EnvInstance-ID: {made['id']}\r\n"),
            (f"GET //{host}/ HTTP/1.1", ""),
            (f"GET @{host}/ HTTP/1.1", f"AEnvCore-EnvInstance-ID: {made['id']}\r\n"),
            (f"CONNECT {host} HTTP/1.1", ""),
            ("GET /health HTTP/1.1", f"AEnvCore-MCPProxy-URL: http://{host}\r\n"),
            ("GET /health HTTP/1.1", f"AEnvCore-MCPProxy-URL: http://{made['ip']}@{host}\r\n"),
            ("GET /health HTTP/1.1", f"AEnvCore-MCPProxy-URL: http://{host}#{made['ip']}:8081\r\n"),
            ("GET /health HTTP/1.1", f"AEnvCore-EnvInstance-ID: {host}\r\n"),
            (f"GET /instance/{host}/health HTTP/1.1", ""),
            (f"GET /instance/{made['id']}/port/80@{host}/ HTTP/1.1", ""),
        ):
            answer = raw(platform, f"{line}\r\nhost: {host}\r\n{token}{headers}\r\n".encode())
            assert answer.split()[1] in (b"400", b"403", b"404"), (line, headers, answer)
        with pytest.raises(TimeoutError):
            listener.accept()
        for request in ({"hub": {"url": f"http://{host}"}}, {"source": f"http://{host}"}):
            body = {"envName": "counter", **request}
            assert fetch(platform.url, "/env-instance", body, headers=bearer(tokens("ann")))[0] == 403


def test_a_port_of_an_instance_is_never_a_port_of_the_host(platform: Served, tokens: Tokens, made: Any) -> None:
    own = ServerUrl.parse(platform.url).port
    status, said = fetch(platform.url, f"/instance/{made['id']}/port/{own}/health", headers=bearer(tokens("ann")))
    assert status == 502, said
    assert f"nothing listens on port {own}" in said["message"]
    for port in ("0", "65536", "99999", "-1", "80%2f", "8o"):
        status, _ = fetch(platform.url, f"/instance/{made['id']}/port/{port}/", headers=bearer(tokens("ann")))
        assert status in (400, 404), port


def test_a_smuggled_request_is_never_executed(platform: Served, tokens: Tokens, made: dict[str, Any]) -> None:
    """One server may read as a body what another reads as the next request. Here it is never executed."""
    inner = (
        f"DELETE /env-instance/{made['id']} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {platform.first_token}\r\n\r\n"
    )
    head = (
        f"POST /instance/{made['id']}/functions/double HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {tokens('ann')}\r\n"
    )
    for smuggled in (
        f"content-length: {len(inner) + 5}\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{inner}",
        f"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n{inner}",
        f"transfer-encoding: chunked\r\ntransfer-encoding: x\r\n\r\n0\r\n\r\n{inner}",
        f"content-length: 0\r\ncontent-length: {len(inner)}\r\n\r\n{inner}",
        f"connection: upgrade\r\nupgrade: websocket\r\ncontent-length: 0\r\n\r\n{inner}",
        f"connection: upgrade\r\nupgrade: h2c\r\n\r\n{inner}",
        f"transfer-encoding: chunked\r\n\r\n5;a=\n{inner}",
        f"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n{inner}",
    ):
        raw(platform, (head + smuggled).encode())
    status, body = fetch(platform.url, f"/env-instance/{made['id']}", headers=bearer(tokens("ann")))
    assert (status, body["data"]["status"]) == (200, "Running")


def test_an_oversized_request_is_refused_and_costs_no_memory(platform: Served, tokens: Tokens, made: Any) -> None:
    def peak() -> int:
        lines = Path(f"/proc/{platform.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024

    token = f"host: x\r\nauthorization: Bearer {tokens('ann')}\r\n".encode()
    call = f"POST /instance/{made['id']}/tools/echo HTTP/1.1\r\n".encode()
    chunk = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
    before = peak()
    assert b" 413 " in raw(platform, call + token + b"content-length: 100000000\r\n\r\n", b"x" * 10_000)
    assert b" 413 " in raw(
        platform, b"POST /env-instance HTTP/1.1\r\n" + token + b"content-length: 99999999999\r\n\r\n"
    )
    assert b" 431 " in raw(
        platform, b"GET /env-instance/list HTTP/1.1\r\n" + token + b"x: %s\r\n\r\n" % (b"y" * 70_000)
    )
    assert b" 431 " in raw(platform, b"GET /" + b"y" * 70_000 + b" HTTP/1.1\r\n" + token + b"\r\n")
    many = b"".join(b"x%d: y\r\n" % number for number in range(20_000))
    assert b" 431 " in raw(platform, b"GET /env-instance/list HTTP/1.1\r\n" + token + many + b"\r\n")
    assert fetch(platform.url, "/env-instance", b"[" * 100_000, headers=bearer(tokens("ann")))[0] == 400
    large = {"envName": "counter", "labels": {"x": "y" * (5 << 20)}}
    assert fetch(platform.url, "/env-instance", large, headers=bearer(tokens("ann")))[0] == 413
    # Endless chunks to a route that holds the body: it is cut off at the limit.
    endless = b"POST /env-instance HTTP/1.1\r\n" + token + b"transfer-encoding: chunked\r\n\r\n"
    url = ServerUrl.parse(platform.url)
    with socket.create_connection((url.host, url.port), 30) as wire:
        wire.sendall(endless)
        taken = 0
        with contextlib.suppress(OSError):
            for _ in range(200):
                wire.sendall(chunk)
                taken += 1
        assert taken < 200 or wire.recv(12) == b"HTTP/1.1 413"
    assert peak() - before < 160  # one body of the maximum size, twice


def test_a_slow_sender_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_connection, "BODY_SECONDS", 0.3)
    monkeypatch.setattr(server_connection, "HEADER_SECONDS", 0.3)
    streamed: list[bytes] = []

    async def handler(request: Request) -> Response:
        if request.stream is not None:
            streamed.extend([data async for data in request.stream])
        return Response(200, b"{}")

    async def main() -> None:
        server = HttpServer(handler, max_body=1 << 20, stream_over=1000)
        listener = await server.listen(host="127.0.0.1")
        port = listener.sockets[0].getsockname()[1]

        async def talk(*parts: bytes, pause: float = 0.0) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for part in parts:
                writer.write(part)
                await asyncio.sleep(pause)
            try:
                return await reader.read(20)
            except ConnectionResetError:
                return b""
            finally:
                writer.close()

        assert b" 408 " in await talk(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n12345")
        assert b" 408 " in await talk(b"POST / HTTP/1.1\r\nhost: x")
        assert await talk(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n\r\n12345") == b""
        assert not streamed  # the reader of the body got an error, too
        slow = [b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 8\r\n\r\n", *[b"x"] * 8]
        assert b" 200 " in await talk(*slow, pause=0.01)  # slow, but within the limit
        trickle = [b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 900\r\n\r\n", *[b"x"] * 8]
        assert b" 408 " in await talk(*trickle, pause=0.1)  # never silent, and never complete
        await server.close(0)

    run(main())


def test_no_secret_is_logged_even_when_everything_fails(platform: Served, tokens: Tokens, made: dict[str, Any]) -> None:
    word = "hunter2-" + "s3cr3t"
    ann = bearer(tokens("ann"))

    async def main() -> str:
        env = Environment(
            "counter",
            aenv_url=platform.url,
            api_key=tokens("ann"),
            environment_variables={"KEY": word},
            arguments=[word],
        )
        async with env:
            await env.call_tool("echo", {"text": word})
            await env.exec(f"echo {word}; exit 3", stdin=word)
            await env.upload(word, f"/tmp/{word}")
            url = await env.presign_url(1)
            await asyncio.to_thread(fetch, url, word)
            with pytest.raises(NotFound):
                await env.call_function("no-such", {"x": word})
            return url

    signature = run(main()).split("/")[-2]
    fetch(platform.url, f"/{word}?x={word}", headers={**ann, "x": word})
    fetch(platform.url, "/env-instance", {"envName": word}, headers=ann)
    fetch(platform.url, "/env-instance", json.dumps({"envName": 1, "x": word}).encode(), headers=ann)
    fetch(platform.url, f"/instance/{made['id']}/tools/{word}", {"x": word}, headers=ann)
    fetch(platform.url, f"/tokens?x={word}", {"user": "u", "role": word}, headers=bearer(platform.first_token))
    fetch(platform.url, "/env-instance/list", headers=bearer(f"aenv_{word}_{word}"))
    raw(platform, f"GET /{word} HTTP/1.1\r\n{word}\r\n\r\n".encode())
    done = subprocess.run(
        [sys.executable, "-m", "aenv.cli", "instance", "list", "--system-url", platform.url, "--api-key", word],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert word not in done.stdout + done.stderr
    metrics = raw(
        platform, f"GET /metrics HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {platform.first_token}\r\n\r\n".encode()
    )
    secrets = [word, signature, tokens("ann"), made["ip"].rpartition(".")[2]]
    assert not [secret for secret in secrets if secret.encode() in metrics]
    files = [path for path in platform.data.rglob("*") if path.is_file() and "cache" not in path.parts]
    assert platform.log in files
    for path in files:
        content = path.read_bytes()
        for secret in [*secrets, *([platform.first_token] if path != platform.log else [])]:
            assert secret.encode() not in content, path


@pytest.mark.attack("connection floods")
def test_a_large_body_is_not_read_before_its_sender_is_authenticated(platform: Served) -> None:
    at = ServerUrl.parse(platform.url)
    for path in ("/env-instance", "/v1/nothing", "/tokens"):
        with socket.create_connection((at.host, at.port), timeout=30) as connection:
            connection.sendall(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 60000000\r\n\r\n".encode())
            connection.sendall(b"x" * 100_000)
            assert b" 401 " in connection.recv(100)


HOSTILE_PAGE = """
from aenv import register_tool
from aenv.http.messages import Response
from aenv.runtime.app import App

LINES = (
    b"content-type: text/html\\r\\ncontent-security-policy: default-src *\\r\\nset-cookie: a=b\\r\\n"
    b"clear-site-data: *\\r\\nservice-worker-allowed: /\\r\\n"
)
route = App._route

async def answer(self, request):
    if request.path == "/page":
        return Response(200, b"<script>steal()</script>" * (1 if request.query == b"short" else 50_000), LINES)
    return await route(self, request)

App._route = answer

@register_tool
def hello() -> str:
    return "hello"
"""
BROWSER = {"accept": "text/html"}, {"sec-fetch-dest": "object", "sec-fetch-mode": "navigate"}
ORIGIN_WIDE = {"set-cookie", "clear-site-data", "service-worker-allowed"}


@pytest.mark.parametrize("console", ["--console", "--no-console"])
def test_a_page_of_an_environments_code_runs_no_script_in_the_platforms_origin(data: Path, console: str) -> None:
    run(publish(data, "pages", HOSTILE_PAGE))
    with serving(data, console, auth=False) as served:
        status, body = fetch(served.url, "/env-instance", {"envName": "pages"})
        assert status == 200, body
        for length, headers in itertools.product(("short", "long"), BROWSER):
            page = f"{served.url}/instance/{body['data']['id']}/page?{length}"
            with urllib.request.urlopen(urllib.request.Request(page, headers=headers), timeout=60) as answer:
                assert answer.read().startswith(b"<script>steal()")
                assert not ORIGIN_WIDE & {name.lower() for name in answer.headers}
                assert any(each.startswith("sandbox;") for each in answer.headers.get_all("content-security-policy"))
