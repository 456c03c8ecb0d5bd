"""Labels that the platform sets itself, and that callers may not set."""

from __future__ import annotations

from collections.abc import Mapping

from aenv.errors import InvalidArguments

LABEL, REVISION_LABEL = "service", "service-revision"
"""Set on every replica, for people and list filters. No decision depends on them: `Replica` is authoritative."""


def refuse_reserved(labels: Mapping[str, str] | None) -> None:
    """Refuse a caller's labels that use a reserved name.

    Raises:
        InvalidArguments: at least one name is reserved.
    """
    taken = [name for name in (LABEL, REVISION_LABEL) if name in (labels or {})]
    if taken:
        raise InvalidArguments(
            f"labels: {' and '.join(taken)} {'is' if len(taken) == 1 else 'are'} reserved for replicas of services",
            details={"hint": "Choose another name for the label."},
        )
