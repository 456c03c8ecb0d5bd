"""Who did what: one JSON object a line, for whoever has to answer for it. Never an argument, never a secret."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

from aenv.errors import ConfigError


class Audit:
    """Appends to a file that its owner alone may read."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"audit: {path} cannot be written: {error.strerror}") from None
        self._file = os.fdopen(descriptor, "a", encoding="utf-8")

    def write(self, action: str, *, user: str, token: str, status: int, **facts: str) -> None:
        """One line, at once."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"at": at, "action": action, "user": user, "token": token, "status": status, **facts}
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """No more."""
        self._file.close()
