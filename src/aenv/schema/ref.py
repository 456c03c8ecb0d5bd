"""References to versions of environments: ``name``, ``name@1``, ``name@^1.2``, ``name@1.2.0``, ``name@sha256:…``.

Versions sort by a text key (`order`), so that a store finds the newest version of a range by reading one end of an
ordered index, regardless of how many versions there are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from aenv.schema.names import check_name, check_version, shown

DIGEST_PATTERN = r"^sha256:[0-9a-f]{64}$"

_RANGE = re.compile(r"(?P<how>[\^~]?)(?P<numbers>[0-9]{1,18}(\.[0-9]{1,18}){0,7})(?:\.[x*])?")
_ANY = ("", "latest", "*")


def is_digest(text: str) -> bool:
    """Return whether a text is a digest."""
    return re.fullmatch(DIGEST_PATTERN.strip("^$"), text) is not None


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Range of versions: `order` is at least ``low`` and below ``high``."""

    low: str
    high: str


@dataclass(frozen=True, slots=True)
class EnvRef:
    """A parsed reference: a name, and a constraint on the version."""

    name: str
    want: str = ""
    """Empty for the newest, or a version, a range or a digest."""

    @classmethod
    def parse(cls, text: str) -> EnvRef:
        """Parse ``name[@want]``.

        Raises:
            ValueError: with the expected format.
        """
        name, _, want = text.strip().partition("@")
        check_name(name)
        ref = cls(name, "" if want in _ANY else want)
        if ref.want and not is_digest(ref.want) and ref.range is None:
            try:
                check_version(ref.want)
            except ValueError:
                raise ValueError(
                    f"invalid version {shown(want)}; write {name}@1.2.0, {name}@1, {name}@^1.2 or {name}@sha256:…"
                ) from None
        return ref

    @property
    def range(self) -> VersionRange | None:
        """Return the range of the reference; None for an exact version or a digest."""
        return parse_range(self.want) if self.want else VersionRange("", "~")

    def __str__(self) -> str:
        return f"{self.name}@{self.want}" if self.want else self.name


def parse_range(want: str) -> VersionRange | None:
    """Return the range of ``1``, ``1.2``, ``~1.2`` or ``^1.2``; None for anything else.

    ``1.2.0`` is an exact version, not a range.
    """
    found = _RANGE.fullmatch(want)
    if found is None:
        return None
    numbers = [int(number) for number in found["numbers"].split(".")]
    how = found["how"]
    if not how and len(numbers) > 2:
        return None
    if how == "^":
        # The first number that is not 0 must stay the same: 0.2 and 0.3 may be incompatible.
        last = next((place for place, number in enumerate(numbers) if number), len(numbers) - 1)
    elif how == "~":
        last = min(1, len(numbers) - 1)
    else:
        last = len(numbers) - 1
    following = [*numbers[:last], numbers[last] + 1]
    return VersionRange(f"{_release(numbers)}!", f"{_release(following)}!")


def order(version: str) -> str:
    """Return a text key that sorts like the version: 1.0-rc2 < 1.0-rc10 < 1.0 = 1.0.0 < 1.0.1 < 1.10."""
    core = version.partition("+")[0]
    found = re.match(r"[0-9]+(\.[0-9]+)*", core)
    head = found[0] if found else "0"
    release = _release([int(number) for number in head.split(".")])
    runs = re.findall(r"[0-9]+|[A-Za-z]+", core[len(head) :])
    if not runs:
        return f"{release}-"
    return f"{release}!" + ",".join(f"0{_number(int(run))}" if run.isdigit() else f"1{run.lower()}" for run in runs)


def is_prerelease(version: str) -> bool:
    """Return whether a version is a prerelease, like 1.0-rc1."""
    return "!" in order(version)


def _release(numbers: list[int]) -> str:
    while len(numbers) > 1 and not numbers[-1]:
        numbers = numbers[:-1]
    return ".".join(map(_number, numbers))


def _number(number: int) -> str:
    """Return a number with its length as a prefix, so that 10 sorts after 9."""
    digits = str(number)
    return f"{len(digits):03d}{digits}"
