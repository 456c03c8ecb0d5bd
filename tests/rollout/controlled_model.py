"""A model endpoint whose responses a test controls to the byte, streams also in time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import asynccontextmanager

from aenv.http.messages import Answer, Request, Response, Stream
from aenv.http.server import HttpServer


class ControlledModel:
    """Answers with the given bodies in turn; a list is a stream of server-sent events."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[tuple[int, bytes | Sequence[bytes]]] = []
        self.requests: list[Request] = []
        self.hold = asyncio.Event()
        """Streams wait for it before their last event."""
        self.hold.set()
        self.cut = False
        """End streams before their last event."""

    def will_answer(self, body: object, status: int = 200) -> None:
        self.answers.append((status, json.dumps(body).encode()))

    def will_stream(self, *events: object, named: bool = False) -> None:
        lines = []
        for event in events:
            name = f"event: {event['type']}\n" if named and isinstance(event, dict) else ""
            data = event if isinstance(event, str) else json.dumps(event)
            lines.append(f"{name}data: {data}\n\n".encode())
        self.answers.append((200, lines))

    async def handle(self, request: Request) -> Answer:
        self.requests.append(request)
        status, body = self.answers.pop(0)
        if isinstance(body, bytes):
            return Response(status, body)

        async def stream(scope, receive, send):
            headers = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            for part in body[:-1]:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await self.hold.wait()
            if self.cut:
                raise ConnectionResetError("cut by the test")
            await send({"type": "http.response.body", "body": body[-1], "more_body": False})

        return Stream(stream)


@asynccontextmanager
async def controlled_model():
    model = ControlledModel()
    server = HttpServer(model.handle, max_body=1 << 24)
    model.url = await server.open("127.0.0.1", 0, None)
    try:
        yield model
    finally:
        model.hold.set()
        await server.close(grace=0.0)
