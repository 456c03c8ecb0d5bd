"""Serves the sites of an episode on the instance's own loopback, each under a name of its own.

Names that are no site's lead nowhere: the browser is told so when it starts. A request that changes something must come
from a page of the same site, so that no other page can act in the agent's name.
"""

import html
import mimetypes
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

MOST_BODY = 8 << 20
SECONDS = 30


@dataclass(frozen=True)
class Request:
    """What a page asks for."""

    method: str
    path: str
    query: Mapping[str, str]
    form: Mapping[str, str]
    cookies: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True)
class Response:
    """What it gets."""

    body: bytes | str = ""
    status: int = 200
    type: str = "text/html; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


Site = Callable[[Request], Response]


class Refused(Exception):
    """What the visitor asked for cannot be done; the page says why."""


def redirect(path: str) -> Response:
    """Send the visitor on, after something was changed."""
    return Response(status=303, headers={"Location": path})


def escape(value: object) -> str:
    """Return a value as text of a page."""
    return html.escape(str(value))


def folder_site(folder: Path) -> Site:
    """Return a site of the files of a folder. Links, dot files and what lies outside of it are not served."""
    root = folder.resolve()

    def serve(request: Request) -> Response:
        path = (root / unquote(request.path).lstrip("/")).resolve()
        if path.is_dir():
            path = path / "index.html"
        inside = path.is_relative_to(root) and not any(part.startswith(".") for part in path.relative_to(root).parts)
        if not inside or not path.is_file():
            return Response("<h1>404: there is no such page</h1>", 404)
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        return Response(path.read_bytes(), type=kind)

    return serve


class SiteServer:
    """All sites, on one port of the loopback."""

    def __init__(self) -> None:
        self.sites: dict[str, Site] = {}
        """Sites by host name, such as ``shop.test``."""
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.owner = self
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.5,), daemon=True, name="sites").start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def answer(self, host: str, origin: str, request: Request) -> Response:
        """Answer a request. One at a time: sites need no locks."""
        site = self.sites.get(host)
        if site is None:
            return Response(f"<h1>421: {escape(host)} is not served here</h1>", 421)
        if request.method not in ("GET", "HEAD") and urlsplit(origin).hostname != host:
            return Response("<h1>403: this form belongs to another site</h1>", 403)
        with self._lock:
            try:
                return site(request)
            except Refused as error:
                return Response(f"<!doctype html><title>Error</title><h1>Error</h1><p>{escape(error)}", 400)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    owner: SiteServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = SECONDS
    server: _Server

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > MOST_BODY:
            self.close_connection = True
            self._send(Response("<h1>413: too long</h1>", 413))
            return
        body = self.rfile.read(int(length))
        split = urlsplit(self.path)
        cookies = {name: each.value for name, each in _cookies(self.headers.get("Cookie", "")).items()}
        form: dict[str, str] = {}
        if self.headers.get("Content-Type", "").startswith("application/x-www-form-urlencoded"):
            form = _flat(body.decode("utf-8", "replace"))
        request = Request(self.command, split.path, _flat(split.query), form, cookies, body)
        host = self.headers.get("Host", "").rsplit(":", 1)[0].lower()
        try:
            response = self.server.owner.answer(host, self.headers.get("Origin", ""), request)
        except Exception as error:
            response = Response(f"<h1>500: {escape(type(error).__name__)}</h1>", 500)
            self.log_error("%s: %r", self.path, error)
        self._send(response)

    def _send(self, response: Response) -> None:
        body = response.body.encode() if isinstance(response.body, str) else response.body
        self.send_response(response.status)
        headers = {
            "Content-Type": response.type, "Content-Length": str(len(body)), "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff", **response.headers,
        }  # fmt: skip
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: what pages ask for is in the browser's network log."""


def _cookies(text: str) -> SimpleCookie:
    try:
        return SimpleCookie(text)
    except Exception:  # anything can be in a cookie
        return SimpleCookie()


def _flat(text: str) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_qs(text, keep_blank_values=True, max_num_fields=500).items()}
