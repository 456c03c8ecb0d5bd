"""Rules for the model endpoints that the platform may be asked to call.

A rollout names the URL of a model, and the platform sends requests there from its own network. Without a limit, any
caller could reach whatever the platform's machine reaches.
"""

from __future__ import annotations

from collections.abc import Sequence

from aenv.errors import ConfigError, Forbidden
from aenv.http.url import ServerUrl


class ModelAccess:
    """The allowed endpoints."""

    def __init__(self, allowed: Sequence[str], *, any_endpoint: bool = False) -> None:
        """``any_endpoint``: allow all, since the only caller is the machine's owner.

        Raises:
            ConfigError: an address is invalid.
        """
        self._allowed = [ServerUrl.parse(text) for text in allowed]
        self._any = any_endpoint

    def check(self, url: str) -> None:
        """Raise Forbidden unless this endpoint is allowed."""
        try:
            asked = ServerUrl.parse(url)
        except ConfigError as error:
            raise Forbidden(f"model.url: {error.message}") from None
        if self._any or any(_covers(each, asked) for each in self._allowed):
            return
        hint = "Its administrator allows endpoints with: aenv serve --model-url URL"
        raise Forbidden(f"model.url: this platform does not call {asked}", details={"hint": hint})


def _covers(allowed: ServerUrl, asked: ServerUrl) -> bool:
    if any(each in asked.prefix for each in ("/.", "%", "\\")):  # a server may read it as another path
        return asked == allowed
    same = (allowed.host, allowed.port, allowed.tls) == (asked.host, asked.port, asked.tls)
    return same and (asked.prefix == allowed.prefix or asked.prefix.startswith(f"{allowed.prefix}/"))
