"""Memory that a host pod uses, and its limit: of the control group that this process sees as the root."""

from __future__ import annotations

from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_VERSION_2 = ("memory.current", "memory.max", "memory.stat", "inactive_file")
_VERSION_1 = (
    "memory/memory.usage_in_bytes", "memory/memory.limit_in_bytes", "memory/memory.stat", "total_inactive_file",
)  # fmt: skip
_NO_LIMIT = 1 << 60


def memory_used_and_limit(root: Path = _GROUPS) -> tuple[int, int]:
    """Return bytes in use, without page cache that can be dropped, and the limit. 0: unknown, or no limit."""
    for current, most, statistics, cache in (_VERSION_2, _VERSION_1):
        try:
            used = int((root / current).read_text())
            text = (root / most).read_text().strip()
            limit = 0 if text == "max" else int(text)
            lines = (root / statistics).read_text().splitlines()
        except (OSError, ValueError):
            continue
        dropped = sum(int(line.split()[1]) for line in lines if line.split()[:1] == [cache])
        return max(0, used - dropped), limit if limit < _NO_LIMIT else 0
    return 0, 0
