"""Audit log: one JSON object per line for each request that changes something, with caller, action and status.

Arguments and secrets are never logged.
"""

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
    """Append-only audit file, readable by its owner alone (mode 0600)."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"audit: cannot write to {path}: {error.strerror}") from None
        self._path = path
        self._descriptor = descriptor
        self._lost = 0

    def write(self, action: str, *, user: str, token: str, status: int, **facts: str) -> None:
        """Append one entry immediately.

        A failed write, as on a full disk, is logged but does not fail the request: its action has already happened.
        """
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"at": at, "action": action, "user": user, "token": token, "status": status, **facts}
        data = json.dumps(line, ensure_ascii=False).encode() + b"\n"
        try:
            if os.write(self._descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._lost += 1
            if self._lost == 1:
                log.error("cannot write to the audit log %s: %s", self._path, error.strerror)
            return
        if self._lost:
            log.error("%d entries of the audit log were lost", self._lost)
            self._lost = 0

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
