"""Duplicates: tasks whose calls differ only by parameters, order or repetition, or with almost the same instruction."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from aenv.schema.tasks import TaskStep

SIMILAR = 0.9
"""Share of common word triples from which two instructions are near-duplicates."""
Shape = tuple[str, ...]
_COMMANDS = frozenset(("command", "commands", "cmd", "script", "keys"))
"""Names of arguments that hold shell commands, whose programs are part of the shape of a call."""
_PROGRAM = re.compile(r"(?:^|[|;&\n])\s*([\w./-]+)")


def shape_of(steps: Sequence[TaskStep], schemas: Mapping[str, Mapping[str, Any]]) -> Shape:
    """Return the shape of a call sequence: its different calls without their parameters, sorted.

    So two sequences of one shape differ only by parameters, by order, or by how often a call is repeated.
    """
    return tuple(sorted({call_shape(step, schemas.get(step.tool) or {}) for step in steps}))


def shapes_of(steps: Sequence[TaskStep], schemas: Mapping[str, Mapping[str, Any]]) -> set[Shape]:
    """Return the shape of a call sequence, and its tools, sorted, each as often as it is called.

    Two sequences that have one of these in common are duplicates.
    """
    return {("calls", *shape_of(steps, schemas)), tools_of([step.tool for step in steps])}


def tools_of(tools: Sequence[str]) -> Shape:
    """Return the tools of a sequence as one of its shapes: sorted, each as often as it is called."""
    return ("tools", *sorted(tools))


def call_shape(step: TaskStep, schema: Mapping[str, Any]) -> str:
    """Return a call without its parameters: the tool, the optional arguments given, and the programs of a command."""
    required = schema.get("required") or ()
    optional = sorted(name for name in step.arguments if name not in required)
    programs = [
        program
        for name, value in sorted(step.arguments.items())
        if name in _COMMANDS
        for text in (value if isinstance(value, list) else [value])
        if isinstance(text, str)
        for program in _PROGRAM.findall(text)
    ]
    return f"{step.tool}({', '.join(optional)}){' ' if programs else ''}{' '.join(programs)}"


def triples_of(text: str) -> frozenset[tuple[str, ...]]:
    """Return the triples of neighbouring words of a text."""
    words = re.findall(r"\w+", text.lower())
    return frozenset(zip(words, words[1:], words[2:], strict=False)) or frozenset([tuple(words)])


def similar(one: frozenset[Any], other: frozenset[Any]) -> bool:
    """Return whether two sets of triples are those of near-duplicates."""
    return len(one & other) >= SIMILAR * len(one | other)
