"""Dockerfile parser: instructions with their words, heredocs and flags."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_DIRECTIVE = re.compile(r"#\s*(\w+)\s*=\s*(\S+)\s*$")
_HEREDOC = re.compile(r"<<(-?)([\"']?)([A-Za-z_][A-Za-z0-9_]*)\2")
_FLAG = re.compile(r"--([a-z-]+)(?:=(\S+))?\s+")
_VARIABLE = re.compile(r"\\(?P<escaped>.)|\$(?:(?P<plain>\w+)|\{(?P<name>\w+)(?:(?P<op>:?[-+?])(?P<word>[^}]*))?\})")
INSTRUCTIONS = frozenset((
    "FROM", "ARG", "ENV", "RUN", "COPY", "ADD", "WORKDIR", "USER", "SHELL", "ENTRYPOINT", "CMD", "EXPOSE", "LABEL",
    "VOLUME", "STOPSIGNAL", "HEALTHCHECK", "MAINTAINER",
))  # fmt: skip


class BadDockerfile(Exception):
    """The Dockerfile is invalid or unsupported; the message has the line number."""


@dataclass(frozen=True, slots=True)
class BuildStep:
    """Parsed instruction."""

    name: str
    """Instruction in upper case."""
    text: str
    """Arguments after the flags, joined to one line."""
    line: int
    flags: dict[str, str] = field(default_factory=dict)
    heredocs: tuple[tuple[str, str, bool], ...] = ()
    """Heredocs: name, text, whether variables in it are expanded."""

    @property
    def json_words(self) -> list[str] | None:
        """Words of an instruction in exec form, a JSON list of strings; None for the shell form."""
        if not self.text.startswith("["):
            return None
        try:
            words = json.loads(self.text)
        except ValueError:
            return None
        return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else None

    def words(self, variables: Mapping[str, str]) -> list[str]:
        """Return the words with variables expanded."""
        json_words = self.json_words
        if json_words is not None:
            return [expand(word, variables) for word in json_words]
        try:
            return [expand(word, variables) for word in _split(self.text)]
        except ValueError as error:
            raise BadDockerfile(f"line {self.line}: {error}") from None

    def pairs(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the NAME=VALUE pairs of an ENV, also in its legacy form ``NAME text``."""
        first = self.text.split(maxsplit=1)
        if "=" not in first[0]:
            return {first[0]: expand(first[1], variables) if len(first) > 1 else ""}
        found = {}
        for word in _split(self.text):
            name, _, value = word.partition("=")
            found[name] = expand(value, variables)
        return found


def parse(text: str) -> list[BuildStep]:
    """Parse all instructions.

    Raises:
        BadDockerfile: an instruction is unknown or incomplete.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    escape = _escape(lines)
    steps: list[BuildStep] = []
    numbered = iter(enumerate(lines, 1))
    for number, line in numbered:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        joined = _join_lines(line.strip(), numbered, escape)
        name, _, rest = joined.partition(" ")
        name, rest = name.upper(), rest.strip()
        if name not in INSTRUCTIONS:
            raise BadDockerfile(f"line {number}: unsupported instruction {name}")
        flags = {}
        while found := _FLAG.match(rest):
            flags[found[1]] = found[2] or ""
            rest = rest[found.end() :].lstrip()
        heredocs = tuple(_read_heredoc(found, numbered, number) for found in _heredocs(name, rest))
        if not rest and name != "CMD":
            raise BadDockerfile(f"line {number}: {name} has no arguments")
        steps.append(BuildStep(name, rest, number, flags, heredocs))
    if not any(step.name == "FROM" for step in steps):
        raise BadDockerfile("the Dockerfile has no FROM")
    return steps


def _escape(lines: list[str]) -> str:
    for line in lines:
        found = _DIRECTIVE.match(line.strip())
        if found is None:
            break
        if found[1].lower() == "escape":
            return found[2]
    return "\\"


def _join_lines(line: str, following: Iterator[tuple[int, str]], escape: str) -> str:
    parts = []
    while line.endswith(escape):
        parts.append(line[: -len(escape)])
        line = ""
        for _, more in following:
            if more.strip().startswith("#") or not more.strip():
                continue
            line = more.rstrip()
            break
    return "".join([*parts, line]) if not parts else "\n".join([*parts, line]).replace("\n", " ")


def _heredocs(name: str, text: str) -> list[re.Match[str]]:
    return list(_HEREDOC.finditer(text)) if name in ("RUN", "COPY", "ADD") and not text.startswith("[") else []


def _read_heredoc(found: re.Match[str], following: Iterator[tuple[int, str]], number: int) -> tuple[str, str, bool]:
    lines: list[str] = []
    for _, line in following:
        if (line.lstrip("\t") if found[1] else line) == found[3]:
            return found[3], "".join(f"{each}\n" for each in lines), not found[2]
        lines.append(line.lstrip("\t") if found[1] else line)
    raise BadDockerfile(f"line {number}: unterminated heredoc {found[3]}")


def _split(text: str) -> list[str]:
    """Split words and remove quotes like a shell."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    lexer.escape = ""  # `expand` handles a backslash before a dollar sign
    return [word.replace("\\ ", " ") for word in lexer]


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Expand $NAME, ${NAME}, ${NAME:-word} and ${NAME:+word}; unset variables are empty."""

    def value(found: re.Match[str]) -> str:
        if found["escaped"] is not None:
            return found["escaped"] if found["escaped"] in "$\\" else found[0]
        name = found["plain"] or found["name"]
        current = variables.get(name)
        op = found["op"] or ""
        is_set = current is not None and (current != "" or not op.startswith(":"))
        if op.endswith("-"):
            return (current or "") if is_set else expand(found["word"], variables)
        if op.endswith("+"):
            return expand(found["word"], variables) if is_set else ""
        return current or ""

    return _VARIABLE.sub(value, text)
