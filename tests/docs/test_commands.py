"""Every command and every option that the documentation mentions exists."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path

import click
import pytest

from aenv.cli.main import COMMANDS, cli
from aenv.main import build_parser
from tests.docs.pages import PAGES, blocks_of, name_of, prose_of

_PROMPT = re.compile(r"^(\$ )?(?P<command>.*?\b(aenv|python -m aenv\.main)( .*)?)$")
_SERVER_OPTIONS = {option for action in build_parser()._actions for option in action.option_strings}
_GLOBAL_OPTIONS = {option for parameter in cli.params for option in parameter.opts} | {"-h", "--help"}


def commands_of(page: Path) -> list[str]:
    """Return everything that is written like a command: in scripts, in sessions, in `inline code`."""
    found = re.findall(r"`((?:aenv|python -m aenv\.main)(?: [^`]*)?)`", prose_of(page))
    for block in blocks_of(page):
        if block.language in ("bash", "console"):
            found += [match["command"] for line in block.text.splitlines() if (match := _PROMPT.match(line))]
    return found


def problem_with(command: str) -> str | None:
    words = shlex.split(re.split(r"\s+(?:#|&&|\|\||[|>;&])\s*", f"{command} ")[0], posix=True)
    while words and "=" in words[0] and words[0].partition("=")[0].isidentifier():
        del words[0]  # a variable for this one command
    if words[:3] == ["python", "-m", "aenv.main"]:
        wrong = [word for word in _options(words[3:]) if word not in _SERVER_OPTIONS]
        return f"unknown: {wrong}" if wrong else None
    if words[:1] != ["aenv"]:
        return None
    rest = words[1:]
    while rest and rest[0].startswith("-"):
        if rest[0] not in _GLOBAL_OPTIONS:
            return f"no global option {rest[0]}"
        del rest[0]
    if not rest or not rest[0].islower():
        return None  # only "aenv", or a placeholder
    if rest[0] not in COMMANDS:
        return f"no command {rest[0]}"
    command_object: click.Command = import_module(f"aenv.cli.commands.{COMMANDS[rest[0]]}.{rest[0]}").command
    while isinstance(command_object, click.Group) and len(rest) > 1 and not rest[1].startswith("-"):
        if rest[1] not in command_object.commands:
            return f"no command {rest[0]} {rest[1]}" if rest[1].islower() else None
        del rest[0]
        command_object = command_object.commands[rest[0]]
    options = [option for each in command_object.params for option in (*each.opts, *each.secondary_opts)]
    known = {*options, "--help"}
    passes_on = command_object.context_settings.get("ignore_unknown_options", False)
    wrong = [word for word in _options(rest[1:]) if word not in known]
    return f"unknown: {wrong}" if wrong and not passes_on else None


def _options(words: list[str]) -> list[str]:
    until = words.index("--") if "--" in words else len(words)
    return [word.partition("=")[0] for word in words[:until] if word.startswith("-") and word != "-"]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_on_the_page_exists(page: Path) -> None:
    problems = {command: problem for command in commands_of(page) if (problem := problem_with(command))}
    assert not problems


def test_a_command_or_an_option_that_does_not_exist_is_noticed() -> None:
    assert problem_with("aenv fly") == "no command fly"
    assert problem_with("FOO=1 aenv run --fast") == "unknown: ['--fast']"
    assert problem_with("python -m aenv.main . --fast -- --slow") == "unknown: ['--fast']"
    assert problem_with("aenv run --port 0 && cd x") is None
