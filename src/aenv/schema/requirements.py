"""The lock file of an environment: every package that its requirements come to, with version and digests."""

from __future__ import annotations

import hashlib

REQUIREMENTS = "requirements.txt"
LOCK = "requirements.lock"
OWN = "aenvironment"
"""The sandbox brings it."""


def stamp(requirements: bytes) -> str:
    """The first line of a lock file: which requirements.txt it was made of."""
    return f"# {REQUIREMENTS} sha256:{hashlib.sha256(requirements).hexdigest()}"


def is_current(lock: str, requirements: bytes) -> bool:
    """Whether a lock file was made of these requirements."""
    return lock.partition("\n")[0].strip() == stamp(requirements)
