"""Variables of a caller that decide how packages and hubs are reached: they travel with a request for an instance.

The local platform was started by some other process, whose proxies, certificates and package index may be others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache

_NAMES = re.compile(
    r"(?i)(https?|ftp|all|no)_proxy|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|NETRC|(PIP|UV)_\w+"
)
_INDEX = re.compile(r"(?i)(PIP|UV)_\w*(INDEX|FIND_LINKS)\w*")


def index_of(variables: Mapping[str, str]) -> list[str]:
    """Which package index they name; empty: the usual one. What comes from two of them are not the same packages."""
    return [f"{name}={variables[name]}" for name in sorted(filter(_names_an_index, variables))]


@lru_cache(maxsize=1024)
def _names_an_index(name: str) -> bool:
    return _INDEX.fullmatch(name) is not None


@lru_cache(maxsize=1024)
def travels(name: str) -> bool:
    """Whether the variable of that name is the caller's, not the platform's."""
    return _NAMES.fullmatch(name) is not None


def of_caller() -> dict[str, str]:
    """Those of this process."""
    return {name: os.environ[name] for name in filter(travels, os.environ)}


def without(variables: Mapping[str, str]) -> dict[str, str]:
    """All others."""
    return {name: value for name, value in variables.items() if not travels(name)}
