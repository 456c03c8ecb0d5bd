"""What an environment and its versions may be called."""

from __future__ import annotations

import re

NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
NAME_LIMIT = 253
VERSION_PATTERN = r"^[0-9][0-9A-Za-z]*([.+-][0-9A-Za-z]+)*$"
VERSION_LIMIT = 128


def quoted(text: object) -> str:
    """Text in quotes, short enough for a sentence."""
    whole = repr(text)
    return whole if len(whole) <= 60 else f"{whole[:57]}…'"


def check_name(name: str) -> str:
    """The name itself.

    Raises:
        ValueError: when it cannot name an environment.
    """
    if len(name) > NAME_LIMIT:
        raise ValueError(f"a name has at most {NAME_LIMIT} characters, this one has {len(name)}")
    if not re.fullmatch(NAME_PATTERN.strip("^$"), name):
        raise ValueError(
            f"{quoted(name)} is not a name; use small letters, digits and dashes, like {suggest_name(name)}"
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
        raise ValueError(f"{quoted(version)} is not a version; write it like {like}")
    return version
