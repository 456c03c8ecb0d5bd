"""Create a new project from a template, offline and atomically.

All files are written into a hidden directory next to the target and then moved into place, so a full disk or Ctrl-C
leaves either the whole project or nothing.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath

from aenv.errors import UsageError
from aenv.project import manifest
from aenv.schema.names import check_name, check_version, suggest_name

TEMPLATES = {
    "default": "a tool, a function and a reward",
    "agent": "an agent that others talk to through a chat tool",
    "web": "a board with notes, and a view of it for the console",
    "world": "tables in SQLite, tools that read and write them, and tasks graded by state",
}
SCHEMA_PATH = PurePosixPath(".aenv/config.schema.json")
_LISTED = 5


@dataclass(frozen=True)
class Created:
    """A new project; ``files`` are relative to ``root``."""

    root: Path
    files: tuple[PurePosixPath, ...]


def create(
    name: str,
    *,
    version: str = "1.0.0",
    template: str = "default",
    parent_dir: Path = Path(),
    force: bool = False,
    config_only: bool = False,
) -> Created:
    """Create the project ``parent_dir/name``.

    With ``force``, the template's files replace those of the same name; other files stay. With ``config_only``, only
    config.json is created.

    Raises:
        UsageError: the name, version or template is invalid, or a file is in the way.
    """
    _check(name, version, template)
    if not parent_dir.is_dir():
        raise UsageError(f"no such directory: {parent_dir}")
    files = render(name, version, template, config_only=config_only)
    root = parent_dir / name
    _refuse_to_overwrite(root, files, force=force, config_only=config_only)
    _write(root, files)
    return Created(root, tuple(files))


def render(name: str, version: str, template: str, *, config_only: bool) -> dict[PurePosixPath, bytes]:
    """Return the files of a new project."""
    values = {"{{name}}": name, "{{version}}": version}
    files: dict[PurePosixPath, bytes] = {}
    for path, source in template_files(resources.files("aenv.project") / "templates" / template):
        text = source.read_text(encoding="utf-8")
        for mark, value in values.items():
            text = text.replace(mark, value)
        files[path] = text.encode()
    config = PurePosixPath(manifest.FILE_NAME)
    if config_only:
        document = json.loads(files[config])
        del document["$schema"]  # the schema file is left out
        return {config: (json.dumps(document, indent=2) + "\n").encode()}
    files[SCHEMA_PATH] = (json.dumps(manifest.schema(), indent=2) + "\n").encode()
    return dict(sorted(files.items()))


def _check(name: str, version: str, template: str) -> None:
    try:
        check_name(name)
    except ValueError as error:
        raise UsageError(str(error), {"hint": f"Try: aenv init {suggest_name(name)}"}) from None
    try:
        check_version(version)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if template not in TEMPLATES:
        raise UsageError(f"unknown template {template!r}; expected one of {', '.join(TEMPLATES)}")


def template_files(folder: Traversable) -> list[tuple[PurePosixPath, Traversable]]:
    """Return the files of the template. ``dot-x`` stands for ``.x``, which git would apply in this repository."""
    found: list[tuple[PurePosixPath, Traversable]] = []
    for entry in folder.iterdir():
        if entry.name in ("__pycache__", ".pytest_cache"):  # installing a wheel compiles the templates too
            continue
        name = f".{entry.name.removeprefix('dot-')}" if entry.name.startswith("dot-") else entry.name
        if entry.is_dir():
            found += [(name / path, source) for path, source in template_files(entry)]
        else:
            found.append((PurePosixPath(name), entry))
    return found


def _refuse_to_overwrite(root: Path, files: dict[PurePosixPath, bytes], *, force: bool, config_only: bool) -> None:
    if not root.exists() and not root.is_symlink():
        return
    if not root.is_dir():
        raise UsageError(f"{root} exists and is not a directory; choose another name or remove it")
    for path in files:
        in_the_way = [parent for parent in path.parents if (root / parent).is_file()]
        if in_the_way or (root / path).is_dir():
            raise UsageError(f"{root / (in_the_way or [path])[0]} is in the way of {path}; move it first")
    there = sorted(entry.name for entry in root.iterdir())
    clashing = [name for name in there if name == manifest.FILE_NAME] if config_only else there
    if clashing and not force:
        more = f" and {len(clashing) - _LISTED} more" if len(clashing) > _LISTED else ""
        raise UsageError(
            f"{root} is not empty: it has {', '.join(clashing[:_LISTED])}{more}",
            {"hint": "Use --force to replace the template's files; other files stay."},
        )


def _write(root: Path, files: dict[PurePosixPath, bytes]) -> None:
    with ExitStack() as undo:
        staging = Path(tempfile.mkdtemp(dir=root.parent, prefix=f".{root.name}-"))
        undo.callback(shutil.rmtree, staging, ignore_errors=True)
        fresh, old = staging / "new", staging / "old"
        for path, content in files.items():
            (fresh / path).parent.mkdir(parents=True, exist_ok=True)
            (fresh / path).write_bytes(content)
        if not root.exists():
            fresh.rename(root)
            return
        with ExitStack() as restore:
            for path in files:
                _replace(root, path, fresh / path, old / path, restore)
            restore.pop_all()


def _replace(root: Path, path: PurePosixPath, new: Path, backup: Path, restore: ExitStack) -> None:
    """Move one file into place, and register in ``restore`` how to undo it."""
    for parent in reversed(path.parents):
        if not (root / parent).exists():
            (root / parent).mkdir()
            restore.callback((root / parent).rmdir)
    target = root / path
    if target.exists() or target.is_symlink():
        backup.parent.mkdir(parents=True, exist_ok=True)
        target.rename(backup)
        restore.callback(backup.rename, target)
    new.rename(target)
    restore.callback(target.unlink)
