"""Webhooks: signed, retried, and delivered once by one of several servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aenv.errors import Conflict
from aenv.http.messages import Request, Response
from aenv.http.server import HttpServer
from aenv.hub.local_hub import LocalHub
from aenv.hub.open_hub import HubLocation, open_catalog
from aenv.hub.web import webhooks
from aenv.hub.web.webhooks import WebhookSender, signature
from tests.conftest import run
from tests.hub.parts import push


class Receiver:
    """HTTP endpoint that records deliveries and answers with the status that the test sets."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.status = 200
        self.url = ""

    async def __call__(self, request: Request) -> Response:
        self.requests.append(request)
        return Response(self.status, b"{}")


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    server = HttpServer(receiver, max_body=1 << 20)
    listener = await server.listen(host="127.0.0.1")
    receiver.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/ci?key=1"
    try:
        yield receiver
    finally:
        await server.close(1.0)


Use = Callable[[LocalHub, Receiver], Awaitable[None]]


@pytest.fixture
def with_receiver(store_url: str, tmp_path: Path) -> Callable[[Use], None]:
    async def main(use: Use) -> None:
        hub = LocalHub(open_catalog(HubLocation(store_url, str(tmp_path / "blobs"))))
        try:
            async with receiving() as receiver:
                await use(hub, receiver)
        finally:
            await hub.close()

    return lambda use: run(main(use))


def test_a_push_is_delivered_once_and_signed(with_receiver: Callable[[Use], None]) -> None:
    async def use(hub: LocalHub, receiver: Receiver) -> None:
        catalog = hub.catalog
        hook = await catalog.webhooks.add(receiver.url, ["push", "delete"], ["team"], catalog.now())
        await push(hub, "team-env", "1.0.0")
        await push(hub, "team-env", "1.0.0")
        await push(hub, "other", "1.0.0")
        await hub.release("team-env", "1.0.0")
        senders = [WebhookSender(catalog.store, catalog.webhooks) for _ in range(4)]
        delivered = await asyncio.gather(*(each.deliver_due() for each in senders))
        assert sum(delivered) == 1
        (request,) = receiver.requests
        assert (request.method, request.path, request.query) == ("POST", "/ci", b"key=1")
        assert request.header(b"x-aenv-event") == b"push"
        body = json.loads(request.body)
        assert (body["event"], body["version"]["name"], body["version"]["version"]) == ("push", "team-env", "1.0.0")
        signed = request.header(webhooks.SIGNATURE.encode()).decode()
        at = int(signed.partition("t=")[2].partition(",")[0])
        assert signed == signature(hook.secret, at, request.body)
        assert signed != signature("another secret", at, request.body)
        assert body["id"] == request.header(b"x-aenv-delivery").decode()
        assert await senders[0].deliver_due() == 0
        await hub.delete("team-env", "1.0.0", "gone")
        assert await senders[0].deliver_due() == 1
        assert json.loads(receiver.requests[1].body)["reason"] == "gone"

    with_receiver(use)


def test_a_failed_delivery_is_retried_with_growing_pauses(with_receiver: Callable[[Use], None]) -> None:
    async def use(hub: LocalHub, receiver: Receiver) -> None:
        catalog = hub.catalog
        await catalog.webhooks.add(receiver.url, ["push"], ["*"], catalog.now())
        await push(hub, "a", "1.0.0")
        receiver.status = 500
        now = catalog.clock()
        clock = [now]
        sender = WebhookSender(catalog.store, catalog.webhooks, clock=lambda: clock[0])
        for pause in (0.0, webhooks.FIRST_PAUSE, webhooks.FIRST_PAUSE * 2):
            if pause:
                clock[0] += pause - 0.1
                delivered = len(receiver.requests)
                assert await sender.deliver_due() == 0
                assert len(receiver.requests) == delivered, "too early"
            clock[0] += 0.2
            assert await sender.deliver_due() == 0
        assert len(receiver.requests) == 3
        receiver.status = 204
        clock[0] += 3600
        assert await sender.deliver_due() == 1
        ids = {json.loads(request.body)["id"] for request in receiver.requests}
        assert len(ids) == 1, "a retry has the id of the first attempt"
        assert await sender.deliver_due() == 0

    with_receiver(use)


def test_refused_changes_and_removed_webhooks_cause_no_delivery(with_receiver: Callable[[Use], None]) -> None:
    async def use(hub: LocalHub, receiver: Receiver) -> None:
        catalog = hub.catalog
        hook = await catalog.webhooks.add(receiver.url, ["push"], ["*"], catalog.now())
        await push(hub, "a", "1.0.0", "one")
        with pytest.raises(Conflict):
            await push(hub, "a", "1.0.0", "two")
        sender = WebhookSender(catalog.store, catalog.webhooks)
        assert await sender.deliver_due() == 1
        await push(hub, "a", "2.0.0")
        await catalog.webhooks.remove(hook.id)
        assert await sender.deliver_due() == 0
        await push(hub, "a", "3.0.0")
        assert await sender.deliver_due() == 0
        assert len(receiver.requests) == 1

    with_receiver(use)
