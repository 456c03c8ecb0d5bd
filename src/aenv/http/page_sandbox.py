"""Answers of untrusted servers that a browser may show as pages of our own web origin.

A page of our origin may use the API as its user does. So a page that we have not written is put into a sandbox, where
it has an origin of its own. A server may send a policy itself: browsers apply that one as well, so it cannot weaken
ours.
"""

from __future__ import annotations

from collections.abc import Callable

from aenv.http.messages import Answer, ASGIApp, Message, Receive, Request, Response, Scope, Send, Takeover

Headers = list[tuple[bytes, bytes]]
Change = Callable[[Headers], Headers]

POLICY = b"content-security-policy"
SCRIPTS_APART = b"sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads"
"""Policy for pages whose scripts may run, in an origin of their own."""
NO_SCRIPTS = b"sandbox; default-src 'none'; frame-ancestors 'none'"
"""Policy for pages whose scripts do not run."""
FOR_A_WHOLE_ORIGIN = (
    b"set-cookie", b"alt-svc", b"clear-site-data", b"nel", b"report-to", b"reporting-endpoints",
    b"service-worker-allowed", b"strict-transport-security",
)  # fmt: skip
"""Headers that apply to a whole origin, and so to the platform and to other instances."""
_SANDBOX: Headers = [(POLICY, NO_SCRIPTS), (b"x-content-type-options", b"nosniff")]
_DOCUMENTS = (b"document", b"iframe", b"frame", b"embed", b"object", b"fencedframe")


def is_navigation(request: Request) -> bool:
    """Return whether a browser asks for a page: no other client accepts HTML first."""
    if request.method != "GET":
        return False
    return b"text/html" in request.header(b"accept") or request.header(b"sec-fetch-dest") in _DOCUMENTS


def is_from_browser(request: Request) -> bool:
    """Return whether a browser has sent a request, for a page or from one."""
    return bool(request.header(b"sec-fetch-mode") or request.header(b"origin")) or is_navigation(request)


def sandboxed(answer: Answer) -> Answer:
    """Keep scripts of a page from running, unless they run apart from our origin already."""
    return change_headers(answer, lambda headers: headers if _is_apart(headers) else [*headers, *_SANDBOX])


def isolated(answer: Answer) -> Answer:
    """Keep scripts of an untrusted server's page from running, and the server from setting state for our origin."""
    return change_headers(answer, lambda headers: [*without_origin_wide(headers), *_SANDBOX])


def without_origin_wide(headers: Headers) -> Headers:
    """Return headers without those that apply to a whole origin."""
    return [pair for pair in headers if pair[0].lower() not in FOR_A_WHOLE_ORIGIN]


def _is_apart(headers: Headers) -> bool:
    return any(name.lower() == POLICY and value in (SCRIPTS_APART, NO_SCRIPTS) for name, value in headers)


def change_headers(answer: Answer, change: Change) -> Answer:
    """Change the headers of an answer. After an upgrade there is no page, so only origin-wide ones are removed."""
    if isinstance(answer, Response):
        answer.headers = _lines(change(_pairs(answer.headers)))
    elif isinstance(answer, Takeover):
        status, _, rest = answer.head.partition(b"\r\n")
        answer.head = status + b"\r\n" + _lines(without_origin_wide(_pairs(rest))) + b"\r\n"
    else:
        answer.app = _changed(answer.app, change)
    return answer


def _changed(app: ASGIApp, change: Change) -> ASGIApp:
    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_changed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": change(list(message.get("headers", [])))}
            await send(message)

        await app(scope, receive, send_changed)

    return run


def _pairs(lines: bytes) -> Headers:
    parts = [line.partition(b":") for line in lines.split(b"\r\n") if line]
    return [(name, value.strip()) for name, _, value in parts]


def _lines(headers: Headers) -> bytes:
    return b"".join(b"%s: %s\r\n" % pair for pair in headers)
