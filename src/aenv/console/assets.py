"""Static files of the console, with the headers that keep hostile content from running in it."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from aenv.http.messages import Request, Response

FOLDER = Path(__file__).with_name("static")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""No inline script or style, nothing from elsewhere; and the browser refuses to turn text into HTML."""
FRAME = "frame.html"
FRAME_POLICY = (
    "sandbox allow-scripts allow-forms; default-src 'none'; script-src 'unsafe-inline' data:; "
    "style-src 'unsafe-inline'; img-src data: blob:; font-src data:; media-src data: blob:; base-uri 'none'; "
    "connect-src 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""For pages that authors and agents wrote: scripts run, in no origin, and reach no server, storage or other page."""


def _headers(policy: str, framing: str) -> bytes:
    pairs = (
        ("content-security-policy", policy),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", framing),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cache-control", "no-cache"),
    )
    return "".join(f"{name}: {value}\r\n" for name, value in pairs).encode()


HEADERS = _headers(POLICY, "DENY")
FRAME_HEADERS = _headers(FRAME_POLICY, "SAMEORIGIN") + b"x-dns-prefetch-control: off\r\n"


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the console."""

    data: bytes
    compressed: bytes
    type: str
    tag: str
    """Entity tag: another one for other content."""
    headers: bytes = HEADERS

    def answer(self, request: Request) -> Response:
        """Return the file, or 304 if the browser has it."""
        tag = f'etag: "{self.tag}"\r\n'.encode()
        if f'"{self.tag}"'.encode() in request.header(b"if-none-match"):
            return Response(304, b"", self.headers + tag)
        zipped = b"gzip" in request.header(b"accept-encoding")
        lines = self.headers + tag + f"content-type: {self.type}\r\nvary: accept-encoding\r\n".encode()
        if zipped:
            lines += b"content-encoding: gzip\r\n"
        body = self.compressed if zipped else self.data
        return Response(200, b"" if request.method == "HEAD" else body, lines)


@cache
def load() -> dict[str, Asset]:
    """Read all files. The keys are paths relative to the console; that of the page is empty."""
    found = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.suffix in TYPES:
            data = path.read_bytes()
            name = path.relative_to(FOLDER).as_posix()
            tag = hashlib.sha256(data).hexdigest()[:24]
            headers = FRAME_HEADERS if name == FRAME else HEADERS
            asset = Asset(data, gzip.compress(data, 9, mtime=0), TYPES[path.suffix], tag, headers)
            found["" if name == "index.html" else name] = asset
    return found
