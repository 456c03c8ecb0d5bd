"""Isolation of untrusted responses from the platform's web origin."""

from __future__ import annotations

from aenv.http.messages import Answer, Response, Stream, Takeover
from aenv.http.relay import Headers
from aenv.http.reverse_proxy import StreamedResponse


def isolate_origin(answer: Answer) -> Answer:
    """Isolate the response of an untrusted server from the platform's web origin.

    The browser sees the platform's origin, so the response must not set cookies or other state for it, and its page is
    sandboxed into an opaque origin. Other pages that know the URL may read it.
    """
    if isinstance(answer, Response):
        lines = [line for line in answer.headers.split(b"\r\n") if not line.startswith(_ORIGIN_HEADERS)]
        answer.headers = b"\r\n".join([*_ISOLATION_LINES, *lines])
    elif isinstance(answer, Takeover):
        lines = [line for line in answer.head.split(b"\r\n") if not line.startswith(_ORIGIN_HEADERS)]
        answer.head = b"\r\n".join(lines)
    elif isinstance(answer, Stream) and isinstance(answer.app, StreamedResponse):
        answer.app.change_headers = _isolated
    return answer


_ORIGIN_HEADERS = (
    b"set-cookie:", b"access-control-allow-origin:",
    b"alt-svc:", b"clear-site-data:", b"nel:", b"report-to:", b"reporting-endpoints:", b"service-worker-allowed:",
    b"strict-transport-security:",
)  # fmt: skip
"""Headers that apply to a whole origin, and so to the platform and the ports of other instances."""
_ISOLATION = [
    (b"content-security-policy", b"sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads"),
    (b"access-control-allow-origin", b"*"),
]
_ISOLATION_LINES = [b"%s: %s" % pair for pair in _ISOLATION]


def _isolated(headers: Headers) -> Headers:
    return [*_ISOLATION, *(pair for pair in headers if not (pair[0] + b":").startswith(_ORIGIN_HEADERS))]
