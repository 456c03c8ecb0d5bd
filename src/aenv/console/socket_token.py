"""Tokens of browsers' WebSockets, which cannot carry an ``Authorization`` header.

A script can set no header on a WebSocket, but it can offer subprotocols. So the console offers ``aenv`` and
``bearer.TOKEN``, with the token in base64url, and what is behind this module sees an ordinary request with a token.
"""

from __future__ import annotations

import base64
import binascii

from aenv.http.messages import Request
from aenv.http.websocket import PROTOCOLS, SUBPROTOCOL, offered_protocols

_BEARER = b"bearer."


def take_socket_token(request: Request) -> None:
    """Move the token in the subprotocols of a WebSocket request into its ``Authorization`` header."""
    if not request.wants_upgrade_to(b"websocket") or request.header(b"authorization"):
        return
    offered = offered_protocols(request)
    given = next((each.removeprefix(_BEARER) for each in offered if each.startswith(_BEARER)), None)
    if given is None or SUBPROTOCOL not in offered:
        return
    try:
        token = base64.b64decode(given + b"=" * (-len(given) % 4), b"-_", validate=True)
    except binascii.Error:
        token = b""
    others = [each for each in offered if not each.startswith(_BEARER)]
    request.headers = [pair for pair in request.headers if pair[0] != PROTOCOLS]
    request.headers += [(PROTOCOLS, b", ".join(others)), (b"authorization", b"Bearer " + token)]
