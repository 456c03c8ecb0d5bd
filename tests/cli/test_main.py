import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from aenv.cli.main import COMMANDS, GROUPS, main
from aenv.errors import AEnvError, ConfigError, LoadError, UsageError


@pytest.fixture
def boom(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A command ``boom`` that raises what the test says."""
    raised: list[BaseException] = []

    @click.command(name="boom")
    def command() -> None:
        raise raised[0]

    module = ModuleType("aenv.cli.commands.author.boom")
    module.command = command  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aenv.cli.commands.author.boom", module)
    monkeypatch.setitem(COMMANDS, "boom", "author")
    return raised.append


def test_help_lists_every_command_with_a_word_about_it(aenv: Any) -> None:
    done = aenv("--help")
    assert done.returncode == 0
    for group, commands in GROUPS.items():
        assert f"{group.capitalize()}:\n" in done.stdout
        for name, help_text in commands.items():
            assert f"  {name} " in done.stdout
            assert help_text in done.stdout


@pytest.mark.parametrize("args", [["--help"], ["version", "-s"], ["--version"]])
def test_a_quick_command_imports_nothing_heavy(args: list[str]) -> None:
    code = "import sys; from aenv.cli.main import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    heavy = {"pydantic", "rich", "mcp", "asyncio", "ssl", "http.client", "aenv.runtime", "aenv.project"}
    assert not loaded & heavy
    commands = {name for name in loaded if name.startswith("aenv.cli.commands.") and name.count(".") == 4}
    assert commands <= {f"aenv.cli.commands.{COMMANDS.get(args[0])}.{args[0]}"}


def test_every_command_has_its_name_and_a_help_text() -> None:
    from importlib import import_module

    for name, group in COMMANDS.items():
        command: click.Command = import_module(f"aenv.cli.commands.{group}.{name}").command
        assert command.name == name
        assert command.help, name


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AEnvError("it broke"), 1),
        (UsageError("not like that"), 2),
        (ConfigError("a bad file"), 3),
        (LoadError("bad code"), 4),
        (KeyboardInterrupt(), 130),
        (FileNotFoundError(2, "No such file or directory", "x.txt"), 1),
        (RuntimeError("surprise"), 1),
    ],
)
def test_every_kind_of_error_has_its_exit_code(boom: Any, error: BaseException, code: int) -> None:
    boom(error)
    assert main(["boom"]) == code


def test_an_error_is_a_message_and_a_hint_on_stderr(boom: Any, capsys: pytest.CaptureFixture[str]) -> None:
    boom(ConfigError("first problem\nsecond problem", {"hint": "Do this."}))
    main(["boom"])
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "Error: first problem\n       second problem\nHint: Do this.\n"


def test_a_surprise_is_one_line_and_says_how_to_see_more(boom: Any, capsys: pytest.CaptureFixture[str]) -> None:
    boom(RuntimeError("surprise"))
    main(["boom"])
    assert capsys.readouterr().err.splitlines() == [
        "Error: unexpected RuntimeError: surprise",
        "Hint: This is a bug in aenv. See where it happens with: aenv --debug <command>",
    ]


def test_debug_shows_the_traceback(boom: Any, capsys: pytest.CaptureFixture[str]) -> None:
    boom(RuntimeError("surprise"))
    assert main(["--debug", "boom"]) == 1
    said = capsys.readouterr().err
    assert "Traceback (most recent call last)" in said
    assert "raise raised[0]" in said


def test_a_mistyped_command_gets_the_right_one(aenv: Any) -> None:
    done = aenv("runn")
    assert done.returncode == 2
    assert "unknown command 'runn'; did you mean run?" in done.stderr
    assert done.stdout == ""


def test_an_unknown_command_of_a_group_names_the_one_that_was_meant(aenv: Any) -> None:
    done = aenv("instance", "lst")
    assert done.returncode == 2
    assert "unknown command 'lst'; did you mean list?" in done.stderr


def test_help_of_a_group_shows_the_whole_first_sentence_of_each_command(aenv: Any) -> None:
    words = " ".join(aenv("instance", "--help").stdout.split())
    assert "Forward TCP ports of this machine to ports inside an instance, until Ctrl-C." in words
    assert "..." not in words.replace("[ARGS]...", "")


@pytest.mark.parametrize("args", [["init"], ["init", "a", "--nope"], ["version", "-o", "yaml"], ["completion", "tcsh"]])
def test_a_wrong_call_is_exit_code_2(aenv: Any, args: list[str]) -> None:
    done = aenv(*args)
    assert done.returncode == 2
    assert "Error:" in done.stderr


@pytest.mark.parametrize("args", [["version", "-o", "json"], ["--help"], ["completion", "bash"]])
def test_a_reader_that_went_away_is_no_reason_to_complain(aenv_command: list[str], args: list[str]) -> None:
    process = subprocess.Popen([*aenv_command, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait(30) == 1


@pytest.mark.parametrize(("variables", "colours"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_are_for_terminals_that_want_them(
    aenv_command: list[str], tmp_path: Path, variables: dict[str, str], colours: bool
) -> None:
    import os
    import pty

    ours, theirs = pty.openpty()
    environment = {**{k: v for k, v in os.environ.items() if k != "NO_COLOR"}, "TERM": "xterm", **variables}
    done = subprocess.run(
        [*aenv_command, "test"], cwd=tmp_path, stdout=theirs, stderr=theirs, stdin=theirs, env=environment
    )
    os.close(theirs)
    said = os.read(ours, 10_000).decode()
    os.close(ours)
    assert done.returncode == 2
    assert ("\x1b[" in said) == colours
    assert "Error:" in said


def test_piped_output_has_no_colours(aenv: Any) -> None:
    done = aenv("init", "my-env")
    assert "\x1b" not in done.stdout + done.stderr
