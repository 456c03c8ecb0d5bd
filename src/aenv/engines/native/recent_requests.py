"""Remember recent requests, to make more sandboxes like them and to tell which preloaded parents are still of use."""

from __future__ import annotations

from aenv.engines.base import SandboxSpec


class RecentRequests:
    """Specs by key. Keys of one family share a preloaded parent."""

    def __init__(self) -> None:
        self._specs: dict[str, SandboxSpec] = {}
        self._families: dict[str, set[str]] = {}

    def add(self, family: str, key: str, spec: SandboxSpec) -> None:
        """Remember a request. ``family``, ``key``: see `SandboxKeys`."""
        self._specs[key] = spec
        self._families.setdefault(family, set()).add(key)

    def spec(self, key: str) -> SandboxSpec:
        """Return the spec of a key.

        Raises:
            KeyError: there is no recent request with it.
        """
        return self._specs[key]

    def forget(self, key: str) -> list[str]:
        """Forget a key. Return the keys and families whose preloaded parents serve no recent request any more."""
        self._specs.pop(key, None)
        unused = [] if key in self._families else [key]
        for family, keys in list(self._families.items()):
            keys.discard(key)
            if not keys:
                del self._families[family]
                unused.append(family)
        return unused
