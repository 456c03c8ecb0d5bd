"""Messages about an invalid config.json, which tell its author what to change.

Two kinds: *problems* are errors, and all of them are reported at once; *warnings* are about unknown keys. Such a key
may be a typing error or belong to another tool, so it is kept and reported.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from aenv.errors import ConfigError
from aenv.project.fields import shown

_MEANT = {
    "templateType": "deployConfig.podTemplate",
    "requirements": "deployConfig.cpu and deployConfig.memory",
    "env": "environmentVariables",
}
_KINDS = {
    "string_type": "text; put it in quotes",
    "int_type": "a whole number; write it without quotes",
    "int_from_float": "a whole number",
    "bool_type": "true or false; write it without quotes",
    "dict_type": "an object; write it in { }",
    "model_type": "an object; write it in { }",
    "list_type": "a list; write it in [ ]",
}


@dataclass(frozen=True)
class Problem:
    """An invalid value; ``path`` is its place, like ``deployConfig.service.port``."""

    path: str
    message: str

    def line(self, file: str) -> str:
        return ": ".join(part for part in (file, self.path, self.message) if part)


def config_error(file: str, problems: Iterable[Problem]) -> ConfigError:
    """Return the error that lists all problems, one per line."""
    problems = list(problems)
    details = {"file": file, "problems": [{"path": p.path, "message": p.message} for p in problems]}
    return ConfigError("\n".join(problem.line(file) for problem in problems), details)


def of_validation(error: ValidationError) -> list[Problem]:
    found: dict[str, Problem] = {}
    for each in error.errors(include_url=False):
        if (
            each["loc"][:1] == ("failureReward",) and each["type"] != "value_error"
        ):  # a number or an object: each alternative reports an error of its own
            found["failureReward"] = Problem("failureReward", f"{shown(each['input'])} is not a number or an object")
        else:
            problem = Problem(_dotted(each["loc"]), _sentence(dict(each)))
            found[f"{problem.path} {problem.message}"] = problem
    return list(found.values())


def unknown_keys(model: BaseModel, path: str = "") -> list[Problem]:
    """Return a warning for each unknown key, with the key that was probably meant."""
    found: list[Problem] = []
    for key in model.model_extra or {}:
        message = f"unknown key, ignored{_hint(key, type(model))}"
        found.append(Problem(_join(path, key), message))
    for name, field in type(model).model_fields.items():
        below = _join(path, field.alias or name)
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            found += unknown_keys(value, below)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, BaseModel):
                    found += unknown_keys(item, f"{below}[{index}]")
    return found


def _hint(key: str, model: type[BaseModel]) -> str:
    here = {_flat(name): name for name in _keys(model)}
    below = {
        _flat(inner): f"{outer}.{inner}"
        for outer, block in _keys(model).items()
        if isinstance(block, type) and issubclass(block, BaseModel)
        for inner in _keys(block)
    }
    for names, cutoff in ((here, 0.75), (below, 0.8)):  # 0.75: two letters of four changed places, as in "fokr"
        if close := difflib.get_close_matches(_flat(key), names, n=1, cutoff=cutoff):
            return f"; did you mean {names[close[0]]}?"
    return f"; did you mean {_MEANT[key]}?" if key in _MEANT else ""


def _flat(key: str) -> str:
    return key.replace("_", "").replace("-", "").lower()


def _keys(model: type[BaseModel]) -> dict[str, Any]:
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def _sentence(error: dict[str, Any]) -> str:
    kind, value = error["type"], error.get("input")
    if kind == "value_error":
        return str(error["ctx"]["error"])
    if kind == "missing":
        return "this key is required"
    if kind == "literal_error":
        return f"{shown(value)} is not one of {error['ctx']['expected'].replace(' or ', ', ')}"
    if kind == "bool_type" and not isinstance(value, str):
        return f"{shown(value)} is not true or false"
    if kind in _KINDS:
        return f"{shown(value)} is not {_KINDS[kind]}"
    if kind == "greater_than_equal":
        return f"{shown(value)} is too small; the minimum is {error['ctx']['ge']}"
    if kind == "less_than_equal":
        return f"{shown(value)} is too large; the maximum is {error['ctx']['le']}"
    return f"{shown(value)} cannot be used here: {error['msg']}"


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _dotted(loc: tuple[int | str, ...]) -> str:
    path = ""
    for part in loc:
        if part == "[key]":  # pydantic's mark for the key itself, not its value
            continue
        path = f"{path}[{part}]" if isinstance(part, int) else _join(path, part)
    return path
