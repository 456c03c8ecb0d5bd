"""Isolation of untrusted responses from the platform's web origin."""

from __future__ import annotations

from aenv.http.messages import Answer
from aenv.http.page_sandbox import POLICY, SCRIPTS_APART, Headers, change_headers, without_origin_wide

_READERS = b"access-control-allow-origin"


def isolate_origin(answer: Answer) -> Answer:
    """Isolate the response of an untrusted server from the platform's web origin.

    The browser sees the platform's origin, so the response must not set cookies or other state for it, and its page is
    sandboxed into an opaque origin. Other pages that know the URL may read it.
    """
    return change_headers(answer, _isolated)


def _isolated(headers: Headers) -> Headers:
    own = [(POLICY, SCRIPTS_APART), (_READERS, b"*")]
    return [*own, *(pair for pair in without_origin_wide(headers) if pair[0].lower() != _READERS)]
