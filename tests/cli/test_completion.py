import shutil
import subprocess
from typing import Any

import pytest

from aenv.cli.main import COMMANDS


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_the_shell_can_read(aenv: Any, shell: str) -> None:
    script = aenv("completion", shell).stdout
    assert "_AENV_COMPLETE" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("aenv ", set(COMMANDS)),
        ("aenv ver", {"version"}),
        ("aenv init -t ", {"default", "agent", "web", "world"}),
        ("aenv run --ins", {"--inspector-port"}),
    ],
)
def test_commands_options_and_values_are_offered(aenv: Any, typed: str, offered: set[str]) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split(" ")) - 1), "_AENV_COMPLETE": "bash_complete"}
    done = aenv(env=words)
    assert {line.split(",")[1] for line in done.stdout.splitlines()} == offered
