"""The kinds of value that a config.json holds, each with a check that answers in a sentence.

A checked value stays exactly as it was written (``"cpu": 2`` does not become ``"2"``): the file belongs to
its author, and ``save`` must give it back.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, PlainValidator, WithJsonSchema

from aenv.isolation.network import Network
from aenv.project import quantities
from aenv.schema import duration

NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
NAME_LIMIT = 253
VERSION_PATTERN = r"^[0-9][0-9A-Za-z]*([.+-][0-9A-Za-z]+)*$"
VERSION_LIMIT = 128
BASE_PATTERN = r"^([a-z0-9][a-z0-9._-]*|[^/\x00][^\x00]*/[^\x00]*)$"
STATUSES = ("Init", "Pending", "Creating", "Created", "Testing", "Verified", "Ready", "Released", "Failed")


def shown(value: object) -> str:
    """A value as it stands in JSON, short enough for a sentence."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…'"


def check_name(name: str) -> str:
    """The name itself.

    Raises:
        ValueError: when it cannot name an environment.
    """
    if len(name) > NAME_LIMIT:
        raise ValueError(f"a name has at most {NAME_LIMIT} characters, this one has {len(name)}")
    if not re.fullmatch(NAME_PATTERN.strip("^$"), name):
        raise ValueError(
            f"{shown(name)} is not a name; use small letters, digits and dashes, like {suggest_name(name)}"
        )
    return name


def suggest_name(name: str) -> str:
    """The nearest valid name."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name)
    return re.sub(r"[^a-z0-9]+", "-", words.lower())[:NAME_LIMIT].strip("-") or "my-env"


def check_version(version: str) -> str:
    """The version itself.

    Raises:
        ValueError: when it is not a version.
    """
    if len(version) > VERSION_LIMIT:
        raise ValueError(f"a version has at most {VERSION_LIMIT} characters")
    if not re.fullmatch(VERSION_PATTERN.strip("^$"), version):
        bare = version.removeprefix("v")
        like = bare if re.fullmatch(VERSION_PATTERN.strip("^$"), bare) else "1.0.0"
        raise ValueError(f"{shown(version)} is not a version; write it like {like}")
    return version


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
        raise ValueError(f"{shown(value)} leaves no time at all; write it like 30m")
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
        raise ValueError(f"{shown(value)} is not a status; use one of {', '.join(STATUSES)}")
    return value


def _absolute(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith("/"):
        raise ValueError(f"{shown(value)} is not an absolute path; write it like /home/admin/data")
    return value


def _label(value: str) -> str:
    if value and not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?", value):
        raise ValueError(f"{shown(value)} is not the name of a template; use letters, digits, dashes and dots")
    return value


def _scalar(value: Any, what: str, like: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{shown(value)} is not {what}; write it like {like}")
    return value


Name = Annotated[
    str,
    AfterValidator(check_name),
    WithJsonSchema({"type": "string", "pattern": NAME_PATTERN, "maxLength": NAME_LIMIT}),
]
Version = Annotated[
    str,
    AfterValidator(check_version),
    WithJsonSchema({"type": "string", "pattern": VERSION_PATTERN, "maxLength": VERSION_LIMIT}),
]
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
                {"type": "string", "enum": ["none", "loopback", "host"]},
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
            ],
            "examples": ["loopback", ["pypi.org", "*.pythonhosted.org", "10.1.0.0/16"]],
        }
    ),
]
AbsolutePath = Annotated[str, PlainValidator(_absolute), WithJsonSchema({"type": "string", "pattern": "^/"})]
BaseName = Annotated[
    str,
    AfterValidator(_base),
    WithJsonSchema({"type": "string", "pattern": BASE_PATTERN, "examples": ["debian-12", "./rootfs.tar"]}),
]
TemplateName = Annotated[str, AfterValidator(_label)]
