"""Which version of an environment is meant: ``name``, ``name@1``, ``name@^1.2``, ``name@1.2.0``, ``name@sha256:…``.

Versions are put in order by a text of their own (`order`), so that a store can find the newest one in a range by
looking at one end of an ordered index, however many there are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from aenv.schema.names import check_name, check_version, shown

DIGEST_PATTERN = r"^sha256:[0-9a-f]{64}$"

_RANGE = re.compile(r"(?P<how>[\^~]?)(?P<numbers>[0-9]{1,18}(\.[0-9]{1,18}){0,7})(?:\.[x*])?")
_ANY = ("", "latest", "*")


def is_digest(text: str) -> bool:
    """Whether it names content."""
    return re.fullmatch(DIGEST_PATTERN.strip("^$"), text) is not None


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Versions whose `order` is at least ``low`` and below ``high``."""

    low: str
    high: str


@dataclass(frozen=True, slots=True)
class EnvRef:
    """A name, and what is asked of its version."""

    name: str
    want: str = ""
    """Nothing for the newest, a version, a range or a digest."""

    @classmethod
    def parse(cls, text: str) -> EnvRef:
        """Read ``name[@want]``.

        Raises:
            ValueError: with a sentence that says how to write it.
        """
        name, _, want = text.strip().partition("@")
        check_name(name)
        ref = cls(name, "" if want in _ANY else want)
        if ref.want and not is_digest(ref.want) and ref.span is None:
            try:
                check_version(ref.want)
            except ValueError:
                raise ValueError(
                    f"{shown(want)} names no version; write {name}@1.2.0, {name}@1, {name}@^1.2 or {name}@sha256:…"
                ) from None
        return ref

    @property
    def span(self) -> VersionRange | None:
        """The range that is asked for; None when it is one version or one digest."""
        return span(self.want) if self.want else VersionRange("", "~")

    def __str__(self) -> str:
        return f"{self.name}@{self.want}" if self.want else self.name


def span(want: str) -> VersionRange | None:
    """The versions that ``1``, ``1.2``, ``~1.2`` or ``^1.2`` stand for; None for anything else.

    ``1.2.0`` is one version and no range.
    """
    found = _RANGE.fullmatch(want)
    if found is None:
        return None
    numbers = [int(number) for number in found["numbers"].split(".")]
    how = found["how"]
    if not how and len(numbers) > 2:
        return None
    if how == "^":
        # The first number that is not 0 may not change: 0.2 and 0.3 need not fit each other.
        last = next((place for place, number in enumerate(numbers) if number), len(numbers) - 1)
    elif how == "~":
        last = min(1, len(numbers) - 1)
    else:
        last = len(numbers) - 1
    following = [*numbers[:last], numbers[last] + 1]
    return VersionRange(f"{_release(numbers)}!", f"{_release(following)}!")


def order(version: str) -> str:
    """A text that sorts as the version does: 1.0-rc2 < 1.0-rc10 < 1.0 = 1.0.0 < 1.0.1 < 1.10."""
    core = version.partition("+")[0]
    found = re.match(r"[0-9]+(\.[0-9]+)*", core)
    head = found[0] if found else "0"
    release = _release([int(number) for number in head.split(".")])
    runs = re.findall(r"[0-9]+|[A-Za-z]+", core[len(head) :])
    if not runs:
        return f"{release}-"
    return f"{release}!" + ",".join(f"0{_number(int(run))}" if run.isdigit() else f"1{run.lower()}" for run in runs)


def is_prerelease(version: str) -> bool:
    """Whether the version comes before the release that it is named after."""
    return "!" in order(version)


def _release(numbers: list[int]) -> str:
    while len(numbers) > 1 and not numbers[-1]:
        numbers = numbers[:-1]
    return ".".join(map(_number, numbers))


def _number(number: int) -> str:
    """With its length before it, so that 10 comes after 9."""
    digits = str(number)
    return f"{len(digits):03d}{digits}"
