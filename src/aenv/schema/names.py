"""How environments, versions and the states of a version are named; a bad name is refused with a better one."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
NAME_LIMIT = 253
VERSION_PATTERN = r"^[0-9][0-9A-Za-z]*([.+-][0-9A-Za-z]+)*$"
VERSION_LIMIT = 128
STATUSES = ("Init", "Pending", "Creating", "Created", "Testing", "Verified", "Ready", "Released", "Failed")
"""In the order of the numbers that the hub's older routes answer with."""


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
