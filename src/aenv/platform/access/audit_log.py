"""Who did what: one JSON object a line, for whoever has to answer for it. Never an argument, never a secret."""

from __future__ import annotations

import errno
import json
import os
from datetime import UTC, datetime
from pathlib import Path

from aenv.errors import ConfigError
from aenv.tracing.logging import getLogger

log = getLogger("audit")


class AuditLog:
    """Appends to a file that its owner alone may read."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"audit: {path} cannot be written: {error.strerror}") from None
        self._path = path
        self._descriptor = descriptor
        self._lost = 0

    def write(self, action: str, *, user: str, token: str, status: int, **facts: str) -> None:
        """One line, at once. What was done was done, so a disk that is full does not make it fail."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"at": at, "action": action, "user": user, "token": token, "status": status, **facts}
        data = json.dumps(line, ensure_ascii=False).encode() + b"\n"
        try:
            if os.write(self._descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._lost += 1
            if self._lost == 1:
                log.error("the audit log %s cannot be written: %s", self._path, error.strerror)
            return
        if self._lost:
            log.error("%d lines of the audit log were lost", self._lost)
            self._lost = 0

    def close(self) -> None:
        """No more."""
        os.close(self._descriptor)
