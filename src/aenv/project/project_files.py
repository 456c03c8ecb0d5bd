"""The files of a project: those in its folder that are not ignored.

.gitignore and .aenvignore apply in every folder, by git's rules. .aenvignore has precedence, so ``!data.bin`` there
includes a file that git ignores. Files that never belong to an environment (caches, virtual environments, version
control, a ``.env`` with secrets) are ignored by default. Nothing outside of the folder counts: the same files give the
same bundle on every machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pathspec import GitIgnoreSpec

from aenv.errors import ConfigError
from aenv.schema.bundle import DEPTH_LIMIT, SETTINGS

IGNORE_FILES = (".gitignore", ".aenvignore")
BUNDLE_SUFFIX = ".aenv.tar"
USUALLY_IGNORED = (
    "__pycache__/", "*.py[cod]", ".venv/", "venv/", "node_modules/", ".pytest_cache/", ".mypy_cache/",
    ".ruff_cache/", ".hypothesis/", ".coverage", "*.egg-info/", ".DS_Store", ".idea/", ".vscode/", ".env", ".env.*",
    f"*{BUNDLE_SUFFIX}",
)  # fmt: skip
"""Patterns that are ignored by default; an ignore file may include them with ``!``."""
NEVER = {".git", ".hg", ".svn"}


class Source(NamedTuple):
    """A file or symbolic link of the project; ``path`` is relative, with slashes."""

    path: str
    entry: os.DirEntry[str]


class _Rules(NamedTuple):
    """Patterns of an ignore file, and the folder that they apply to."""

    prefix: str
    spec: GitIgnoreSpec


def sources(root: Path) -> list[Source]:
    """Return the project's files and links, sorted by path.

    Raises:
        ConfigError: an ignore file is invalid, or the project contains a device, socket or pipe.
    """
    usual = _Rules("", GitIgnoreSpec.from_lines(USUALLY_IGNORED))
    return sorted(_walk(str(root), "", [usual]), key=lambda source: source.path)


def _walk(folder: str, prefix: str, rules: list[_Rules]) -> Iterator[Source]:
    rules = [*rules, *_rules_in(folder, prefix)]
    with os.scandir(folder) as entries:
        found = list(entries)
    for entry in found:
        path = prefix + entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        if entry.name in NEVER or path == SETTINGS or _ignored(path + "/" * is_folder, rules):
            continue
        if is_folder and path.count("/") >= DEPTH_LIMIT:
            raise ConfigError(
                f"{path[:100]}… is more than {DEPTH_LIMIT} folders deep, so it cannot be part of a bundle",
                {"hint": f"Remove it, or add a line to .aenvignore: /{path.partition('/')[0]}/"},
            )
        if is_folder:
            yield from _walk(entry.path, path + "/", rules)
        elif entry.is_symlink() or entry.is_file(follow_symlinks=False):
            yield Source(path, entry)
        else:
            raise ConfigError(
                f"{path} is neither a file nor a folder nor a link, so it cannot be part of a bundle",
                {"hint": f"Remove it, or add a line to .aenvignore: /{path}"},
            )


def _rules_in(folder: str, prefix: str) -> Iterator[_Rules]:
    for name in IGNORE_FILES:
        file = Path(folder) / name
        if not file.is_file():
            continue
        try:
            yield _Rules(prefix, GitIgnoreSpec.from_lines(file.read_text(encoding="utf-8").splitlines()))
        except UnicodeDecodeError as error:
            raise ConfigError(f"{prefix}{name} is not UTF-8 text: {error.reason}") from None
        except ValueError as error:
            raise ConfigError(f"{prefix}{name}: {error}") from None


def _ignored(path: str, rules: list[_Rules]) -> bool:
    """Return whether ``path`` is ignored, by the nearest ignore file that matches it. Folders end in a slash."""
    for prefix, spec in reversed(rules):
        ignored = spec.check_file(path[len(prefix) :]).include
        if ignored is not None:
            return ignored
    return False
