"""What Reasoning Gym uses of three packages that have no wheels, for where they are not installed.

A sandbox installs from wheels only: building a package would run its code outside. Of each package there is here just
what the datasets call, with the same results: cellpylib (Conway's game), zss (how far two trees are apart) and pycosat
(all solutions of a formula).
"""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType
from typing import Any


def installed(name: str) -> bool:
    """Whether there is such a package."""
    return importlib.util.find_spec(name) is not None


def install() -> None:
    """Have them be importable, as far as the real ones are not."""
    for name, parts in (
        ("cellpylib", (init_simple2d, evolve2d, game_of_life_rule)),
        ("zss", (Node, simple_distance)),
        ("pycosat", (itersolve,)),
    ):
        if name not in sys.modules and not installed(name):
            module = ModuleType(name)
            for part in parts:
                setattr(module, part.__name__, part)
            sys.modules[name] = module


def init_simple2d(rows: int, columns: int) -> Any:
    """A history of one board, which is empty but for its middle."""
    import numpy

    board = numpy.zeros((1, rows, columns), dtype=numpy.int32)
    board[0, rows // 2, columns // 2] = 1
    return board


def game_of_life_rule(*_: Any) -> None:
    """Stands for Conway's rule, the only one that is asked for."""


def evolve2d(board: Any, timesteps: int, apply_rule: Any, **_: Any) -> Any:
    """The history of a board whose edges meet, over so many steps, itself included."""
    import numpy

    history = [board[-1]]
    around = [(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1) if (x, y) != (0, 0)]
    for _step in range(timesteps - 1):
        now = history[-1]
        neighbours = sum(numpy.roll(now, shift, axis=(0, 1)) for shift in around)
        history.append(((neighbours == 3) | ((now == 1) & (neighbours == 2))).astype(now.dtype))
    return numpy.array(history)


class Node:
    """A tree."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.children: list[Node] = []

    def addkid(self, node: "Node") -> "Node":
        """One more branch, behind the others."""
        self.children.append(node)
        return self


def simple_distance(one: Node, other: Node, label_dist: Callable[[str, str], float]) -> float:
    """The cheapest way to make one ordered tree the other: put in, take out, rename nodes."""

    @cache
    def forests(left: tuple[Node, ...], right: tuple[Node, ...]) -> float:
        if not left and not right:
            return 0
        costs = []
        if left:
            last = left[-1]
            costs.append(forests((*left[:-1], *last.children), right) + label_dist(last.label, ""))
        if right:
            last = right[-1]
            costs.append(forests(left, (*right[:-1], *last.children)) + label_dist("", last.label))
        if left and right:
            a, b = left[-1], right[-1]
            inside = forests(tuple(a.children), tuple(b.children))
            costs.append(inside + forests(left[:-1], right[:-1]) + label_dist(a.label, b.label))
        return min(costs)

    return forests((one,), (other,))


def itersolve(clauses: list[list[int]]) -> Iterator[list[int]]:
    """All assignments that satisfy a formula: search, with what follows from each choice followed first."""
    rules = [tuple(dict.fromkeys(clause)) for clause in clauses]
    names = sorted({abs(literal) for rule in rules for literal in rule})
    where: dict[int, list[tuple[int, ...]]] = {}
    for rule in rules:
        for literal in rule:
            where.setdefault(-literal, []).append(rule)

    def follow(known: dict[int, bool], new: list[int]) -> bool:
        while new:
            literal = new.pop()
            if abs(literal) in known:
                if known[abs(literal)] != (literal > 0):
                    return False
                continue
            known[abs(literal)] = literal > 0
            for rule in where.get(literal, ()):
                open_ = []
                for part in rule:
                    value = known.get(abs(part))
                    if value is None:
                        open_.append(part)
                    elif value == (part > 0):
                        break
                else:
                    if not open_:
                        return False
                    if len(open_) == 1:
                        new.append(open_[0])
        return True

    def search(known: dict[int, bool]) -> Iterator[list[int]]:
        free = next((name for name in names if name not in known), None)
        if free is None:
            yield [name if known[name] else -name for name in names]
            return
        for literal in (free, -free):
            trial = dict(known)
            if follow(trial, [literal]):
                yield from search(trial)

    start: dict[int, bool] = {}
    if all(rules) and follow(start, [rule[0] for rule in rules if len(rule) == 1]):
        yield from search(start)
