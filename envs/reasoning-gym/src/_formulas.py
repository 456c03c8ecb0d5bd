"""Answers that Reasoning Gym would run: some of its datasets call `eval` on an answer, or have sympy do so.

An agent's answer is text. Run as code beside the expected answer, it could look that up, or give itself the score. So
within the package `eval` and `parse_expr` first read the text, and refuse all that is not a value or a formula.
"""

import ast
import builtins
import re
import sys
from collections.abc import Callable
from typing import Any

MOST_TEXT, MOST_PARTS = 20_000, 5_000
MOST_BITS = 100_000
"""Of a number in a formula: ``9**9**9`` would take all memory."""
MOST_POWER = 4_096
_VALUES = (ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.Load, ast.operator, ast.unaryop)
_FORMULAS = (ast.BinOp, ast.UnaryOp, ast.Name, ast.Call)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*")
_FUNCTIONS = frozenset((
    "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "acot", "sinh", "cosh", "tanh", "coth", "asinh",
    "acosh", "atanh", "exp", "log", "ln", "sqrt", "cbrt", "root", "Abs", "sign", "Integer", "Float", "Rational",
    "Symbol", "erf", "erfi", "Ei", "Si", "Ci", "li", "fresnels", "fresnelc",
))  # fmt: skip


def check(text: str) -> None:
    """Raise ValueError for what is neither a value nor a formula."""
    if len(text) > MOST_TEXT:
        raise ValueError("it is too long")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("it is no formula") from error
    parts = list(ast.walk(tree))
    if len(parts) > MOST_PARTS:
        raise ValueError("it has too many parts")
    for part in parts:
        if not isinstance(part, _VALUES + _FORMULAS):
            raise ValueError(f"{type(part).__name__} has no place in a formula")
        if isinstance(part, ast.Name) and not _NAME.fullmatch(part.id):
            raise ValueError(f"{part.id} is no name of a variable")
        if isinstance(part, ast.Call) and (
            part.keywords or not isinstance(part.func, ast.Name) or part.func.id not in _FUNCTIONS
        ):
            raise ValueError("only functions of mathematics are called in a formula")
    if _bits(tree.body) > MOST_BITS:
        raise ValueError("its numbers are too large")


def _bits(part: ast.AST) -> int:
    """How many bits the value of a part may have, at most."""
    if isinstance(part, ast.Constant):
        return part.value.bit_length() + 1 if isinstance(part.value, int) else 64
    below = [_bits(child) for child in ast.iter_child_nodes(part) if isinstance(child, ast.expr)]
    if not isinstance(part, ast.BinOp):
        return sum(below) + 1
    if isinstance(part.op, ast.Pow | ast.LShift):
        power = part.right.operand if isinstance(part.right, ast.UnaryOp) else part.right
        if isinstance(power, ast.Constant) and isinstance(power.value, int):
            if power.value > MOST_POWER:
                raise ValueError("its powers are too large")
            return below[0] * max(power.value, 1) + power.value + 1
        if not any(isinstance(child, ast.Name) for child in ast.walk(part)):
            if any(isinstance(child, ast.BinOp) and isinstance(child.op, ast.Pow) for child in ast.walk(power)):
                raise ValueError("its powers are too large")
            return below[0] * 64
    return sum(below) + 1


def evaluate(text: str, *scopes: Any) -> Any:
    """In place of `eval`: the value of a formula without names."""
    check(text)
    return builtins.eval(text, {"__builtins__": {}}, {})


def _checked(parse: Callable[..., Any]) -> Callable[..., Any]:
    def parse_expr(text: str, *arguments: Any, **options: Any) -> Any:
        check(text)
        return parse(text, *arguments, **options)

    return parse_expr


def install() -> None:
    """Have all of Reasoning Gym that is loaded use these."""
    import sympy

    if not hasattr(sympy.parse_expr, "__wrapped__"):
        own = _checked(sympy.parse_expr)
        own.__wrapped__ = sympy.parse_expr  # type: ignore[attr-defined]
        sympy.parse_expr = own
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "reasoning_gym":
            module.eval = evaluate  # type: ignore[attr-defined]
            if getattr(module, "parse_expr", None) is sympy.parse_expr.__wrapped__:
                module.parse_expr = sympy.parse_expr  # type: ignore[attr-defined]
