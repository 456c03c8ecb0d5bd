"""The platform of the instance that this code runs in: where code in an instance opens other environments."""

from __future__ import annotations

import os

from aenv.errors import UsageError
from aenv.http import handed_connections

VARIABLE = "AENV_ENVIRONMENTS"
"""Variable of an instance that may open other environments: those that its config.json declares."""
URL = f"unix:{handed_connections.PATH}"


def url() -> str | None:
    """Return the URL of the platform, if this process may open environments there."""
    return URL if handed_connections.connections is not None and os.environ.get(VARIABLE) else None


def refuse_local() -> None:
    """Raise UsageError in an instance: there is no local platform in it."""
    if handed_connections.connections is not None:
        raise UsageError(
            "code in an instance opens only environments that its config.json declares; "
            'add this one: "deployConfig": {"environments": ["NAME"]}'
        )
