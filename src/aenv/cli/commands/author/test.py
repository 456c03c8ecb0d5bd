"""``aenv test``: run a project's own tests."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from aenv.cli.global_options import GlobalOptions
from aenv.cli.options import work_dir_option
from aenv.cli.output import note
from aenv.errors import UsageError

NOTHING_COLLECTED = 5  # pytest's own code


@click.command(name="test", context_settings={"ignore_unknown_options": True})
@work_dir_option
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def command(global_options: GlobalOptions, work_dir: Path, args: tuple[str, ...]) -> int:
    """Run the script of testConfig in config.json, or pytest on tests/ when there is none.

    ARGS go to the script or to pytest: aenv test -k echo -x
    """
    from aenv.engines import package_layers
    from aenv.project import locate

    project = locate.locate(work_dir)
    script = project.loaded.manifest.test_config.script.strip() if project.loaded else ""
    line = " ".join([script, *map(shlex.quote, args)]) if script else shlex.join(_pytest(project.root, args))
    if global_options.verbose:
        note(f"{project.root}$ {line}")
    packages = asyncio.run(package_layers.folders_of(project.root))
    code = _run(line, project.root, {**project.variables, **package_layers.on_python_path(packages)})
    if code == NOTHING_COLLECTED and not script:
        note("pytest found nothing to run: it looks for functions named test_… in files named test_….py")
    return code


def _pytest(root: Path, args: tuple[str, ...]) -> list[str]:
    if find_spec("pytest") is None:
        hint = "Install it with: pip install pytest"
        raise UsageError(f"pytest is not installed for {sys.executable}", {"hint": hint})
    if any((root / arg.partition("::")[0]).exists() for arg in args):
        return [sys.executable, "-m", "pytest", *args]
    folders = [name for name in ("tests", "test") if (root / name).is_dir()]
    if not folders:
        hint = "Write tests/test_something.py, or name a command in config.json: testConfig.script"
        raise UsageError(f"there are no tests in {root}", {"hint": hint})
    return [sys.executable, "-m", "pytest", *args, folders[0]]


def _run(line: str, root: Path, variables: dict[str, str]) -> int:
    """Run a command and return its exit code; a signal counts as 128 plus its number, as in shells."""
    with subprocess.Popen(line, shell=True, cwd=root, env=variables) as process:
        while True:
            try:
                code = process.wait()
            except KeyboardInterrupt:  # the child was interrupted too, and may still finish its report
                continue
            return 128 - code if code < 0 else code
