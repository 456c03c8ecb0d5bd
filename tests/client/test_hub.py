"""The hub client: addresses, retries, and errors when the hub does not answer."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

import pytest
from pydantic_core import to_json

from aenv.client import hub_client as module
from aenv.client.hub_client import HubClient
from aenv.errors import EnvironmentError, EnvironmentTimeoutError, NotFound, Unavailable
from aenv.http.messages import Request, Response
from aenv.http.server import HttpServer
from tests.conftest import run

PAGE = to_json({"success": True, "data": {"items": [], "next": None, "a word of tomorrow": 1}})


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_PAUSE", 0.001)


def against(answer: Callable[[Request], Response], use: Callable[[HubClient], Awaitable[None]]) -> list[Request]:
    """Run a coroutine against a server with scripted responses; return the requests that it got."""
    asked: list[Request] = []

    async def handle(request: Request) -> Response:
        asked.append(request)
        return answer(request)

    async def main() -> None:
        server = HttpServer(handle, max_body=1 << 20)
        listener = await server.listen(host="127.0.0.1")
        client = HubClient(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/some/prefix", "secret")
        try:
            await use(client)
        finally:
            await client.close()
            await server.close(1.0)

    run(main())
    return asked


def test_the_prefix_and_the_token_are_sent() -> None:
    async def use(client: HubClient) -> None:
        page = await client.list(name="a b", tags=["x", "y"], limit=5)
        assert (page.items, page.next) == ([], None)

    (request,) = against(lambda request: Response(200, PAGE), use)
    assert request.path == "/some/prefix/api/v1/environments"
    assert request.query == b"name=a+b&tags=x&tags=y&limit=5&offset=0"
    assert request.header(b"authorization") == b"Bearer secret"


def test_an_unavailable_hub_is_retried() -> None:
    answers = iter([Response(503, b"{}"), Response(503, b"not even JSON"), Response(200, PAGE)])

    async def use(client: HubClient) -> None:
        await client.list()

    assert len(against(lambda request: next(answers), use)) == 3


def test_a_refusal_is_not_retried() -> None:
    async def use(client: HubClient) -> None:
        with pytest.raises(NotFound, match="no such thing"):
            await client.get("a")

    body = to_json({"success": False, "error": "no such thing", "code": "not_found"})
    assert len(against(lambda request: Response(404, body), use)) == 1


def test_a_server_that_is_not_a_hub_is_reported() -> None:
    async def use(client: HubClient) -> None:
        with pytest.raises(EnvironmentError, match="is not a hub"):
            await client.list()

    against(lambda request: Response(200, b"<html>hello"), use)


def test_an_error_without_json_names_the_address_and_its_setting() -> None:
    async def use(client: HubClient) -> None:
        with pytest.raises(NotFound, match=r"http://.*/some/prefix answered HTTP 404 without JSON") as caught:
            await client.list()
        assert "AENV_HUB_URL" in caught.value.details["hint"]

    against(lambda request: Response(404, b"<html>not here"), use)


def test_an_unreachable_hub_is_reported_with_its_address() -> None:
    async def use() -> None:
        client = HubClient("http://127.0.0.1:1", retries=1)
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1 cannot be reached") as caught:
            await client.list()
        assert "aenv config get" in caught.value.details["hint"]
        await client.close()

    run(use())


def test_a_hub_that_does_not_answer_in_time_is_a_timeout() -> None:
    async def use() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            client = HubClient(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.05)
            with pytest.raises(EnvironmentTimeoutError, match="within"):
                await client.list()
            await client.close()

    run(use())


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("hub.example.com", "http://hub.example.com:8083"),
        ("http://hub.example.com", "http://hub.example.com"),
        ("https://hub.example.com/aenv/", "https://hub.example.com/aenv"),
        ("unix:/run/hub.sock", "unix:/run/hub.sock"),
    ],
)
def test_a_bare_hub_host_gets_the_hub_port_and_a_url_the_port_of_its_scheme(text: str, url: str) -> None:
    assert str(HubClient(text).url) == url
