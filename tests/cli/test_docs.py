from importlib import import_module
from pathlib import Path

import click
import pytest

from aenv.cli.main import COMMANDS, cli
from aenv.project import manifest

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_every_option_of_it_is_in_the_reference(name: str) -> None:
    page = (REFERENCE / "cli.md").read_text()
    heading = f"\n## `aenv {name}"
    assert heading in page
    section = page.partition(heading)[2].partition("\n## ")[0]
    command: click.Command = import_module(f"aenv.cli.commands.{COMMANDS[name]}.{name}").command
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert f"`{max(parameter.opts, key=len)}" in section, parameter.name
            for short in parameter.opts:
                assert short in section
        else:
            assert str(parameter.human_readable_name).upper().strip("[]. ") in section


def test_every_global_option_is_in_the_reference() -> None:
    page = (REFERENCE / "cli.md").read_text()
    for parameter in cli.params:
        assert f"`{max(parameter.opts, key=len)}`" in page


def test_every_key_of_config_json_is_in_the_reference() -> None:
    page = (REFERENCE / "config-json.md").read_text()
    schema = manifest.schema()
    for block in (schema, *schema["$defs"].values()):
        for key in block["properties"]:
            assert f"`{key}`" in page, f"{block['title']}.{key}"


def test_the_examples_of_config_json_are_valid() -> None:
    page = (REFERENCE / "config-json.md").read_text()
    examples = [part.partition("```")[0] for part in page.split("```json\n")[1:]]
    assert len(examples) >= 2
    for example in examples:
        manifest.parse(example)
