"""Links that log one browser in to the console of one process, and the tokens that they are exchanged for."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable

LINK_SECONDS = 600.0


class Logins:
    """Codes that work once, and one token for the life of this process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._codes: dict[str, float] = {}
        self._token = secrets.token_urlsafe(32)

    def new_code(self) -> str:
        """Return a code for a link."""
        code = secrets.token_urlsafe(32)
        self._codes[code] = self._clock() + LINK_SECONDS
        return code

    def exchange(self, code: str) -> str | None:
        """Return the token for a code; None if the code was used, is too old, or never existed."""
        until = self._codes.pop(code, None)
        return self._token if until is not None and self._clock() < until else None

    def knows(self, token: str | None) -> bool:
        """Return whether this is the token."""
        return token is not None and hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode())
