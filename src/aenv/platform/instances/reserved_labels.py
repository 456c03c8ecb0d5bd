"""Labels that the platform sets itself, and that callers therefore cannot."""

from __future__ import annotations

from collections.abc import Mapping

from aenv.errors import InvalidArguments

LABEL, REVISION_LABEL = "service", "service-revision"
"""On every replica, for people and for filters of lists. No decision is based on them: `Replica` is what counts."""


def refuse_reserved(labels: Mapping[str, str] | None) -> None:
    """Refuse labels of a caller that would look like the platform's own.

    Raises:
        InvalidArguments: at least one is reserved.
    """
    taken = [name for name in (LABEL, REVISION_LABEL) if name in (labels or {})]
    if taken:
        raise InvalidArguments(
            f"labels: {' and '.join(taken)} {'is' if len(taken) == 1 else 'are'} reserved for replicas of services",
            details={"hint": "Choose another name for the label."},
        )
