"""Rules for names of environments, versions and statuses. An error suggests a valid name."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
NAME_LIMIT = 253
VERSION_PATTERN = r"^[0-9][0-9A-Za-z]*([.+-][0-9A-Za-z]+)*$"
VERSION_LIMIT = 128
STATUSES = ("Init", "Pending", "Creating", "Created", "Testing", "Verified", "Ready", "Released", "Failed")
"""In the order of their numbers on the hub's legacy routes."""


def shown(value: object) -> str:
    """Return a value as in JSON, shortened for an error message."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…'"


def check_name(name: str) -> str:
    """Return a name unchanged if it is valid for an environment.

    Raises:
        ValueError: with a valid name as a suggestion.
    """
    if len(name) > NAME_LIMIT:
        raise ValueError(f"a name has at most {NAME_LIMIT} characters, this one has {len(name)}")
    if not re.fullmatch(NAME_PATTERN.strip("^$"), name):
        raise ValueError(
            f"{shown(name)} is not a name; use small letters, digits and dashes, like {suggest_name(name)}"
        )
    return name


def suggest_name(name: str) -> str:
    """Return a valid name close to the given one."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name)
    return re.sub(r"[^a-z0-9]+", "-", words.lower())[:NAME_LIMIT].strip("-") or "my-env"


def check_version(version: str) -> str:
    """Return a version unchanged if it is valid.

    Raises:
        ValueError: with a valid version as an example.
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
