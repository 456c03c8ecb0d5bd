"""Lock files of environments: every resolved package with its version and digests."""

from __future__ import annotations

import hashlib
import re

REQUIREMENTS = "requirements.txt"
LOCK = "requirements.lock"
OWN = "aenvironment"
"""Our own package. The sandbox provides it, so lock files leave it out."""


def stamp(requirements: bytes) -> str:
    """Return the first line of a lock file: the digest of the requirements.txt that it was resolved from."""
    return f"# {REQUIREMENTS} sha256:{hashlib.sha256(requirements).hexdigest()}"


def is_current(lock: str, requirements: bytes) -> bool:
    """Return whether a lock file was resolved from these requirements."""
    return lock.partition("\n")[0].strip() == stamp(requirements)


def lists_others(requirements: str) -> bool:
    """Return whether a requirements file has a line that is not our own package. Cheaper than to parse it."""
    lines = (line.partition("#")[0].strip() for line in requirements.splitlines())
    return any(re.split(r"[\s\[<>=!~;]", line, maxsplit=1)[0].lower() != OWN for line in lines if line)


def lists_package(requirements: str, name: str) -> bool:
    """Return whether a requirements file has a line for a package of this name, however it spells it."""
    spelled = re.sub(r"[-_.]+", "[-_.]+", re.escape(name).replace(r"\-", "-").replace(r"\.", "."))
    return re.search(rf"(?im)^\s*{spelled}\s*([\[<>=!~;@#(]|$)", requirements) is not None
