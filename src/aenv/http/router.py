"""Route table of the platform and the hub: method and path template to a handler.

Instances have none: their few routes are found in a dictionary, on the path of every call (`aenv.runtime.app`).
"""

from __future__ import annotations

import re
from typing import Generic, TypeVar

T = TypeVar("T")


class Router(Generic[T]):
    """Finds what was added for a method and path. Of several templates that match, the first one added wins."""

    def __init__(self) -> None:
        self._by_method: dict[str, list[tuple[re.Pattern[str], T]]] = {}

    def add(self, method: str, template: str, target: T, *, optional_slash: bool = False) -> None:
        """Add a route. ``{name}`` in the template matches one part of a path; ``optional_slash``: one at the end."""
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(template)) + ("/?" if optional_slash else "")
        self._by_method.setdefault(method, []).append((re.compile(pattern), target))

    def find(self, method: str, path: str) -> tuple[T, dict[str, str]] | None:
        """Return the target and the parts of the path that its template names."""
        for pattern, target in self._by_method.get(method, ()):
            match = pattern.fullmatch(path)
            if match is not None:
                return target, match.groupdict()
        return None

    def methods(self, path: str) -> list[str]:
        """Return the methods that have a route for a path."""
        return [method for method in self._by_method if self.find(method, path) is not None]
