"""Environment variables of the caller that configure access to packages and hubs; sent along with a create request.

The local platform was started by another process, whose proxies, certificates and package index may differ.
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


def package_index(variables: Mapping[str, str]) -> list[str]:
    """Return the settings of the package index; empty: the default. Two indexes may serve different packages."""
    return [f"{name}={variables[name]}" for name in sorted(filter(_names_an_index, variables))]


@lru_cache(maxsize=1024)
def _names_an_index(name: str) -> bool:
    return _INDEX.fullmatch(name) is not None


@lru_cache(maxsize=1024)
def is_caller_variable(name: str) -> bool:
    """Return whether the variable belongs to the caller and not to the platform."""
    return _NAMES.fullmatch(name) is not None


def caller_variables() -> dict[str, str]:
    """Return the caller's variables of this process."""
    return {name: os.environ[name] for name in filter(is_caller_variable, os.environ)}


def without_caller_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return all other variables."""
    return {name: value for name, value in variables.items() if not is_caller_variable(name)}
