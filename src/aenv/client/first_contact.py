"""Servers that have answered this process before.

A server that answered and now refuses connections is probably being restarted, and is waited for. If nothing listens
where no answer ever came from, the URL is probably wrong: that is reported within a second.
"""

from __future__ import annotations

import time

from aenv.errors import AEnvError
from aenv.http.client import ConnectFailed

PATIENCE = 0.4
"""Seconds after which a server that never answered and refuses connections is tried once more at most."""
RESTART_SECONDS = 2.0
"""Seconds to wait for a server that answered before and now refuses connections, where a caller has another way."""
MOST = 10_000
_answered: set[str] = set()


def record(url: object) -> None:
    """Record that this server has answered."""
    if len(_answered) < MOST:
        _answered.add(str(url))


def is_hopeless(url: object, error: AEnvError, began: float, restart: float | None = None) -> bool:
    """Return whether to give up retrying. ``began``: monotonic time of the first attempt.

    ``restart``: seconds to wait for a server that answered before; None: until the retries end.
    """
    if not isinstance(error, ConnectFailed) or not error.refused:
        return False
    patience = restart if str(url) in _answered else PATIENCE
    return patience is not None and time.monotonic() - began >= patience
