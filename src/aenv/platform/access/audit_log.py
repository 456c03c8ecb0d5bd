"""Audit log: one JSON object per line for each request that changes something, with caller, action and status.

Arguments and secrets are never logged.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
from datetime import UTC, datetime
from pathlib import Path

from aenv.errors import ConfigError
from aenv.tracing.logging import getLogger

log = getLogger("audit")

ROTATE_BYTES = 64 << 20
"""Size at which a file is set aside."""
KEEP = 9
"""Number of older files that are kept, as ``audit.jsonl.1`` (the newest) to ``audit.jsonl.9``."""


class AuditLog:
    """Append-only audit file, readable by its owner alone (mode 0600), set aside when it is large."""

    def __init__(self, path: Path, rotate_bytes: int = ROTATE_BYTES, keep: int = KEEP) -> None:
        """``rotate_bytes``: size at which the file is set aside; 0: never."""
        self._path, self._rotate_bytes, self._keep = path, rotate_bytes, keep
        self._lost = 0
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor, self._size = self._open()
        except OSError as error:
            raise ConfigError(f"audit: cannot write to {path}: {error.strerror}") from None

    def write(self, action: str, *, user: str, token: str, status: int, **facts: str) -> None:
        """Append one entry immediately.

        A failed write, as on a full disk, is logged but does not fail the request: its action has already happened.
        """
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"at": at, "action": action, "user": user, "token": token, "status": status, **facts}
        data = json.dumps(line, ensure_ascii=False).encode() + b"\n"
        try:
            self._rotate(len(data))
            if os.write(self._descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._size += len(data)
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

    def _open(self) -> tuple[int, int]:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return descriptor, os.fstat(descriptor).st_size

    def _rotate(self, more: int) -> None:
        """Set a full file aside. Two servers with one file agree by its lock: the second finds it done."""
        if not self._rotate_bytes or self._size + more <= self._rotate_bytes:
            return
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            if self._is_current() and os.fstat(self._descriptor).st_size + more > self._rotate_bytes:
                names = [
                    self._path,
                    *(self._path.with_name(f"{self._path.name}.{n}") for n in range(1, self._keep + 1)),
                ]
                for older, newer in itertools.pairwise(reversed(names)):
                    with contextlib.suppress(FileNotFoundError):
                        newer.replace(older)
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        fresh, size = self._open()
        os.close(self._descriptor)
        self._descriptor, self._size = fresh, size

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False
