"""Lock files of environments: every resolved package with its version and digests."""

from __future__ import annotations

import hashlib

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
