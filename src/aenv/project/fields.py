"""Types of the values in a config.json, each with a validator whose message says how to write the value.

A validated value stays exactly as it was written (``"cpu": 2`` does not become ``"2"``), so that ``save`` writes the
author's own spelling back.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, PlainValidator, WithJsonSchema

from aenv.isolation.network.policy import Network
from aenv.schema import duration, quantities
from aenv.schema.names import STATUSES, Name, Version, check_name, check_version, shown, suggest_name
from aenv.schema.ref import EnvRef

__all__ = ["Name", "Version", "check_name", "check_version", "shown", "suggest_name"]

BASE_PATTERN = r"^([a-z0-9][a-z0-9._-]*|[^/\x00][^\x00]*/[^\x00]*)$"


def _cpu(value: Any) -> Any:
    quantities.millicores(_scalar(value, "an amount of CPU", "1, 0.5 or 500m"))
    return value


def _size(value: Any) -> Any:
    quantities.size(_scalar(value, "a size", "2Gi"))
    return value


def _ttl(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError(f'{shown(value)} is not a duration; write it in quotes with a unit, like "30m"')
    if value and not duration.parse(value):
        raise ValueError(f"{shown(value)} is zero; write a duration like 30m")
    return value


def _variable(value: Any) -> Any:
    if not isinstance(value, str | int | float | bool):
        raise ValueError(f"{shown(value)} cannot be a variable's value; write text, a number, true or false")
    if isinstance(value, str) and "\0" in value:
        raise ValueError("a variable's value cannot contain a NUL character")
    return value


def _variable_name(name: str) -> str:
    if not name or "=" in name or "\0" in name:
        raise ValueError(f"{shown(name)} cannot be a variable's name; leave out '=' and NUL")
    return name


def _network(value: Any) -> Any:
    Network.parse(value)
    return value


def _base(value: str) -> str:
    if value.startswith("/") or not re.fullmatch(BASE_PATTERN.strip("^$"), value) or ".." in value.split("/"):
        raise ValueError(
            f"{shown(value)} is neither the name of a base nor a path in the project; write it like debian-12 or "
            "./rootfs.tar"
        )
    return value


def _status(value: Any) -> Any:
    if value not in STATUSES:
        raise ValueError(f"invalid status {shown(value)}; expected one of {', '.join(STATUSES)}")
    return value


def _absolute(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith("/"):
        raise ValueError(f"{shown(value)} is not an absolute path; write it like /home/admin/data")
    return value


def _label(value: str) -> str:
    if value and not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?", value):
        raise ValueError(f"{shown(value)} is not the name of a template; use letters, digits, dashes and dots")
    return value


def _dependency(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not an environment; write it like tau2@^1.2")
    EnvRef.parse(value)
    return value


def _scalar(value: Any, what: str, like: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{shown(value)} is not {what}; write it like {like}")
    return value


Cpu = Annotated[
    str | int | float,
    PlainValidator(_cpu),
    WithJsonSchema({"type": ["string", "number"], "pattern": quantities.CPU_PATTERN, "examples": ["1", "500m"]}),
]
Size = Annotated[
    str | int,
    PlainValidator(_size),
    WithJsonSchema({"type": ["string", "integer"], "pattern": quantities.SIZE_PATTERN, "examples": ["2Gi", "512Mi"]}),
]
Ttl = Annotated[
    str,
    PlainValidator(_ttl),
    WithJsonSchema({"type": "string", "pattern": f"^$|{duration.PATTERN}", "examples": ["30m", "1h30m"]}),
]
Variables = dict[
    Annotated[str, AfterValidator(_variable_name)],
    Annotated[
        str | int | float | bool,
        PlainValidator(_variable),
        WithJsonSchema({"type": ["string", "number", "boolean"]}),
    ],
]
Status = Annotated[str, PlainValidator(_status), WithJsonSchema({"type": "string", "enum": list(STATUSES)})]
NetworkChoice = Annotated[
    str | list[str],
    PlainValidator(_network),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "enum": ["none", "loopback", "blackhole", "host"]},
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
            ],
            "examples": ["loopback", ["index.example.com", "*.files.example.com", "10.1.0.0/16"]],
        }
    ),
]
AbsolutePath = Annotated[str, PlainValidator(_absolute), WithJsonSchema({"type": "string", "pattern": "^/"})]
Dependency = Annotated[str, PlainValidator(_dependency), WithJsonSchema({"type": "string", "examples": ["tau2@^1.2"]})]
BaseName = Annotated[
    str,
    AfterValidator(_base),
    WithJsonSchema({"type": "string", "pattern": BASE_PATTERN, "examples": ["debian-12", "./rootfs.tar"]}),
]
TemplateName = Annotated[str, AfterValidator(_label)]
