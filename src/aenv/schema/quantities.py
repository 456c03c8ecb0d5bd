"""Amounts of CPU and memory in the notation of Kubernetes and of older configurations.

CPU: ``1``, ``0.5``, ``500m`` and the older ``1C``. Sizes: ``2Gi``, ``512Mi``, ``2G`` and plain bytes. As in Kubernetes,
``G`` is 10**9 bytes and ``Gi`` is 2**30.
"""

from __future__ import annotations

import re
from decimal import Decimal

_CPU = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)([mC]?)")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?")
_FACTORS = {unit: 1024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)}
_FACTORS |= {unit: 1000**power for power, unit in enumerate("kMGTPE", 1)}
_SMALLEST_SIZE = 2**20  # a smaller value lacks its unit: `"memory": 2` is two bytes
_LONGEST_TEXT = 32
_MEANT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt])(?:i?b?|igs?|egs?|i?bytes?|[a-z]*bytes?)", re.IGNORECASE)

CPU_PATTERN = rf"^({_CPU.pattern})$"
SIZE_PATTERN = rf"^({_SIZE.pattern})$"


def millicores(value: str | int | float) -> int:
    """Parse an amount of CPU into thousandths of a core.

    Raises:
        ValueError: the message says how to write it.
    """
    found = _CPU.fullmatch(_text(value))
    amount = Decimal(found[1]) * (1 if found[2] == "m" else 1000) if found else Decimal(0)
    if not found or amount < 1 or amount != int(amount):
        raise ValueError(f"{_shown(value)} is not an amount of CPU; write it like 1, 0.5 or 500m")
    return int(amount)


def size(value: str | int | float) -> int:
    """Parse a size into bytes.

    Raises:
        ValueError: the message says how to write it.
    """
    text = _text(value)
    found = _SIZE.fullmatch(text)
    if not found:
        raise ValueError(f"{_shown(value)} is not a size; write it like {_suggestion(text)}")
    amount = int(Decimal(found[1]) * _FACTORS.get(found[2] or "", 1))
    if amount < _SMALLEST_SIZE:
        advice = f"the least is {_SMALLEST_SIZE >> 20}Mi" if found[2] else f"write the unit too, like {found[1]}Gi"
        raise ValueError(f"{_shown(value)} is only {amount} bytes; {advice}")
    return amount


def canonical_cpu(value: str | int | float) -> str:
    """Return the spelling that Kubernetes accepts; ``1C`` becomes ``1``."""
    whole, rest = divmod(millicores(value), 1000)
    return f"{whole * 1000 + rest}m" if rest else str(whole)


def _text(value: str | int | float) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    text = value.strip() if isinstance(value, str) else f"{Decimal(str(value)):f}"
    return text if len(text) <= _LONGEST_TEXT else ""


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _LONGEST_TEXT + 8 else f"{shown[:_LONGEST_TEXT]}…"


def _suggestion(text: str) -> str:
    meant = _MEANT.fullmatch(text)
    return f"{meant[1]}{meant[2].upper()}i" if meant else "2Gi"
