"""Request checks that every server makes before routing: bearer token, Host and Origin."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from aenv.errors import Forbidden, Unauthorized
from aenv.http.messages import Request


def bearer_token(request: Request) -> str | None:
    """Return the bearer token of a request, or None without an Authorization header.

    Raises:
        Unauthorized: the Authorization header is not a bearer token.
    """
    given = request.header(b"authorization")
    if not given:
        return None
    kind, _, text = given.partition(b" ")
    if kind.lower() != b"bearer":
        raise Unauthorized("send the token as 'Authorization: Bearer <token>'")
    return text.strip().decode("latin-1")


def refuse_web_pages(request: Request, hint: str, names: tuple[bytes, ...] = (b"host", b"origin")) -> None:
    """Refuse requests whose Host or Origin is not this machine (DNS rebinding).

    A web page in a local browser can reach 127.0.0.1 under a host name of its own choosing. ``names``: the headers to
    check; a server beyond loopback cannot know its host names.

    Raises:
        Forbidden: Host or Origin names another machine.
    """
    for name, value in request.headers:
        if name in names and not is_loopback_name(value):
            raise Forbidden(f"{name.decode()} '{value.decode('latin-1')}' is not this machine", details={"hint": hint})


@lru_cache(maxsize=64)
def is_loopback_name(value: bytes) -> bool:
    """Return whether a Host or Origin header names this machine."""
    text = value.decode("latin-1")
    host = text.partition("://")[2] or text
    host = host.split("/")[0]
    name = host if host.endswith("]") or ":" not in host else host.rpartition(":")[0]
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
