"""``aenv init``: create a project from a template."""

from __future__ import annotations

import shlex
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import click

from aenv.cli.output import Output, output_option

if TYPE_CHECKING:
    from aenv.project.scaffold import Created

TEMPLATES = ("default", "agent", "web", "world")


@click.command(name="init")
@click.argument("name")
@click.option("-v", "--version", default="1.0.0", show_default=True, help="First version of the project.")
@click.option(
    "-t",
    "--template",
    type=click.Choice(TEMPLATES),
    default="default",
    show_default=True,
    help="default: a tool, a function and a reward. agent: an agent that others talk to. "
    "web: an environment with a view of its own in the console. "
    "world: SQLite tables, tools that read and write them, tasks graded by state.",
)
@click.option(
    "-w",
    "--work-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="Parent directory of the project.  [default: the current one]",
)
@click.option("--force", is_flag=True, help="Replace the template's files where they exist; keep all others.")
@click.option("--config-only", is_flag=True, help="Write only the config.json.")
@output_option
def command(
    name: str, version: str, template: str, work_dir: Path, force: bool, config_only: bool, output: Output
) -> None:
    """Create an environment project in a directory called NAME. Needs no network.

    NAME is made of small letters, digits and dashes.
    """
    from aenv.project import scaffold

    created = scaffold.create(
        name, version=version, template=template, parent_dir=work_dir, force=force, config_only=config_only
    )
    result = {
        "name": name,
        "version": version,
        "template": template,
        "path": str(created.root.absolute()),
        "files": [str(file) for file in created.files],
    }
    output.show(result, lambda: _tell(created))


def _tell(created: Created) -> str:
    lines = [click.style(f"{created.root}/", bold=True), *_tree(created.files)]
    if len(created.files) > 1:
        steps = (f"cd {shlex.quote(str(created.root))}", "aenv test", "aenv run")
        lines += ["", "Next:", *(f"  {step}" for step in steps)]
    return "\n".join(lines)


def _tree(files: tuple[PurePosixPath, ...], indent: str = "") -> list[str]:
    """Sort files before folders, as trees are usually drawn."""
    here = [file for file in files if len(file.parts) == 1]
    folders: dict[str, list[PurePosixPath]] = {}
    for file in files:
        if len(file.parts) > 1:
            folders.setdefault(file.parts[0], []).append(PurePosixPath(*file.parts[1:]))
    lines, count = [], len(here) + len(folders)
    for index, (name, inside) in enumerate([*((file.name, None) for file in here), *folders.items()], 1):
        last = index == count
        lines.append(f"{indent}{'└── ' if last else '├── '}{name}{'/' if inside else ''}")
        lines += _tree(tuple(inside or ()), indent + ("    " if last else "│   "))
    return lines
