"""Options shared by several commands."""

from __future__ import annotations

from pathlib import Path

import click

work_dir_option = click.option(
    "-w",
    "--work-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path(),
    help="The project.  [default: the current directory]",
)
"""``-w/--work-dir``, as the argument ``work_dir``."""
