"""Which files of a folder belong to the project.

.gitignore and .aenvignore decide, in every folder, by git's rules; where both speak of a file, .aenvignore has the
last word, so ``!data.bin`` there takes along what git does not keep. What never belongs to an environment (caches,
virtual environments, version control, a ``.env`` with secrets) need not be listed. Nothing outside of the folder has
a say: the same files give the same bundle on every machine.
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
"""An ignore file may take them back with ``!``."""
NEVER = {".git", ".hg", ".svn"}


class Source(NamedTuple):
    """A file or a link of the project; ``path`` is relative, with slashes."""

    path: str
    entry: os.DirEntry[str]


class _Rules(NamedTuple):
    """What an ignore file says, and from which folder on."""

    prefix: str
    spec: GitIgnoreSpec


def sources(root: Path) -> list[Source]:
    """The project's files and links, sorted by path.

    Raises:
        ConfigError: an ignore file has a line that is none, or there is something that is no file.
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
    """The nearest file that speaks of the path decides. A folder's path ends in a slash."""
    for prefix, spec in reversed(rules):
        told = spec.check_file(path[len(prefix) :]).include
        if told is not None:
            return told
    return False
