"""The benchmarks there are, by name. Said here so that a list of them needs none of their code."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from aenv.bench.base import Benchmark
from aenv.errors import UsageError

BENCHMARKS: dict[str, tuple[str, str]] = {
    "terminal": ("aenv.bench.terminal.benchmark:TerminalBench", "Tasks of Terminal-Bench 1 and of the Harbor format."),
    "bfcl": ("aenv.bench.built_in:Bfcl", "BFCL multi-turn: requests of a user, turn by turn"),
    "reasoning-gym": ("aenv.bench.built_in:ReasoningGym", "Reasoning Gym: puzzles of 106 kinds"),
    "tau2": ("aenv.bench.built_in:Tau2", "TAU2-Bench: customer service with tools, a policy and a user"),
    "swe": ("aenv.bench.swe.benchmark:SweBench", "SWE-bench: issues of real repositories, solved by patches"),
}
"""Name, where its class is, what it is."""


def kind(name: str) -> type[Benchmark]:
    """The class of a benchmark.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in BENCHMARKS:
        raise UsageError(f"there is no benchmark {name!r}", {"hint": f"There are: {', '.join(BENCHMARKS)}"})
    module, _, attribute = BENCHMARKS[name][0].partition(":")
    found: type[Benchmark] = getattr(import_module(module), attribute)
    return found


def opened(name: str, options: Mapping[str, str]) -> Benchmark:
    """A benchmark, ready to run.

    Raises:
        UsageError: there is none of that name, or it does not know an option.
    """
    found = kind(name)
    for option in options:
        if option not in found.options:
            known = ", ".join(found.options) or "none"
            raise UsageError(f"{name} has no option {option!r}", {"hint": f"There are: {known}"})
    return found(options)
