"""Bridge from the server's connections to ASGI applications."""

from __future__ import annotations

import logging

from aenv.http.messages import STATUS_LINES, ASGIApp, Message, Request, Response, Scope, ServerConnection

log = logging.getLogger("aenv.http")


class AsgiExchange:
    """Serve one request with an ASGI application."""

    def __init__(self, connection: ServerConnection, request: Request, keep_alive: bool) -> None:
        self.connection = connection
        self.request = request
        self.keep_alive = keep_alive
        self.received = False
        self.started = False
        self.finished = False
        self.chunked = False

    async def run(self, app: ASGIApp) -> bool:
        """Serve the request. Returns whether the connection can be used again."""
        request = self.request
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": request.path,
            "raw_path": request.path.encode(),
            "query_string": request.query,
            "root_path": "",
            "headers": request.headers,
            "client": None,
            "server": None,
        }
        try:
            await app(scope, self.receive, self.send)
        except Exception:
            log.exception("%s %s failed", request.method, request.loggable_path)
            if not self.started:
                self.connection.write(Response(500, b'{"success":false,"error":"internal error"}'), False)
            return False
        return self.finished and self.keep_alive

    async def receive(self) -> Message:
        """Return the request once, then wait for the client to disconnect."""
        if not self.received:
            self.received = True
            return {"type": "http.request", "body": self.request.body, "more_body": False}
        await self.connection.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send a part of the response. Waits while the client reads too slowly."""
        connection = self.connection
        if connection.gone.is_set():
            return
        if message["type"] == "http.response.start":
            self._start(message)
        elif message["type"] == "http.response.body":
            self._body(message.get("body", b""), more=message.get("more_body", False))
        if not connection.writable.is_set():
            await connection.writable.wait()

    def _start(self, message: Message) -> None:
        headers = list(message.get("headers", ()))
        self.started = True
        bodiless = message["status"] in (204, 304)
        self.chunked = not bodiless and not any(name.lower() == b"content-length" for name, _ in headers)
        if self.chunked:
            headers.append((b"transfer-encoding", b"chunked"))
        if not self.keep_alive:
            headers.append((b"connection", b"close"))
        lines = b"".join(b"%s: %s\r\n" % pair for pair in headers)
        self.connection.transport.write(STATUS_LINES[message["status"]] + lines + b"\r\n")

    def _body(self, body: bytes, *, more: bool) -> None:
        out = body
        if self.chunked:
            out = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
            if not more:
                out += b"0\r\n\r\n"
        if out and self.request.method != "HEAD":
            self.connection.transport.write(out)
        self.finished = not more
