"""The benchmarks by name: those of aenv, and those of other packages (entry points of the group `aenv.benchmarks`)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from aenv import plugins
from aenv.bench.base import Benchmark
from aenv.errors import ConfigError, UsageError

BENCHMARKS: dict[str, tuple[str, str]] = {
    "terminal": ("aenv.bench.terminal.benchmark:TerminalBench", "Tasks of Terminal-Bench 1 and of the Harbor format."),
    "bfcl": ("aenv.bench.built_in:Bfcl", "BFCL multi-turn: requests of a user, turn by turn"),
    "reasoning-gym": ("aenv.bench.built_in:ReasoningGym", "Reasoning Gym: puzzles of 106 kinds"),
    "tau2": ("aenv.bench.built_in:Tau2", "TAU2-Bench: customer service with tools, a policy and a user"),
    "swe": ("aenv.bench.swe.benchmark:SweBench", "SWE-bench: issues of real repositories, solved by patches"),
}
"""Class and description of each benchmark, by name."""


def names() -> list[str]:
    """Return the names of all benchmarks: aenv's own, then those of other packages."""
    return [*BENCHMARKS, *(name for name in plugins.names(plugins.BENCHMARKS) if name not in BENCHMARKS)]


def kind(name: str) -> type[Benchmark]:
    """Return the class of a benchmark.

    Raises:
        UsageError: the name is unknown.
        ConfigError: it is of another package, and cannot be loaded.
    """
    if name not in BENCHMARKS:
        if not plugins.has(plugins.BENCHMARKS, name):
            raise UsageError(f"unknown benchmark {name!r}", {"hint": f"Expected one of: {', '.join(names())}"})
        return _plugin(name)
    module, _, attribute = BENCHMARKS[name][0].partition(":")
    found: type[Benchmark] = getattr(import_module(module), attribute)
    return found


def _plugin(name: str) -> type[Benchmark]:
    try:
        found = plugins.load(plugins.BENCHMARKS, name)
    except Exception as error:
        raise ConfigError(f"benchmark {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Benchmark)):
        raise ConfigError(f"benchmark {name!r} is {found!r}, which is no subclass of aenv.bench.base.Benchmark")
    return found


def opened(name: str, options: Mapping[str, str]) -> Benchmark:
    """Return a benchmark with these options.

    Raises:
        UsageError: the name or an option is unknown.
    """
    found = kind(name)
    for option in options:
        if option not in found.options:
            known = ", ".join(found.options) or "none"
            raise UsageError(f"{name} has no option {option!r}", {"hint": f"Expected one of: {known}"})
    return found(options)
