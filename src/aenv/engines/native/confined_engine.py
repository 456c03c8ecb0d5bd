"""The native engine at the isolation level ``confined``: for containers that forbid namespaces.

It is never used unless the platform's settings name it (``isolation``), and what it lacks is refused before a start.
"""

from __future__ import annotations

from aenv.engines.base import Capabilities, StorageMedium
from aenv.engines.native.engine import NativeEngine
from aenv.errors import Unavailable
from aenv.isolation.confined.level import confined_refusal
from aenv.isolation.host_support import unsupported_reason


class ConfinedEngine(NativeEngine):
    """Forks sandboxes without namespaces."""

    isolation = "confined"
    capabilities = Capabilities(
        networks=frozenset(("none", "loopback", "host")),
        outlives_server=True,
        on_this_machine=True,
        resources=frozenset(("cpu", "memory")),
        storage_media=frozenset(("disk",)),
        pools=True,
    )

    @classmethod
    def check_host(cls) -> str:
        reason = confined_refusal()
        if reason is not None:
            raise Unavailable(f"instances cannot be confined: {reason}")
        return "isolation level confined: no namespaces; see the security guide for what it cannot hide"

    def storage_refusal(self, medium: StorageMedium) -> str | None:
        return None if medium == "disk" else "without namespaces, the files of instances are on disk"


def engine_for(isolation: str) -> type[NativeEngine]:
    """Return the engine of a level that is not the default. ``auto``: the strongest one that the host allows.

    Raises:
        Unavailable: the host allows none.
    """
    missing = unsupported_reason() if isolation == "auto" else "not asked for"
    if missing is None:
        return NativeEngine
    refused = confined_refusal()
    if refused is None:
        return ConfinedEngine
    beside = f", and namespaces are not available: {missing}" if isolation == "auto" else ""
    raise Unavailable(f"instances cannot be confined: {refused}{beside}")
