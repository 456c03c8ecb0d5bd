"""What of a patch has no place in the run of the tests that judge it.

Tests are run by files of the repository: settings of runners, conftest.py, helpers beside the tests. A patch may change
them, and a change in them can make any test pass. So they are as they were in the base commit when the tests run, but
for those that the known solution changes, too: these stay, and are declared.
"""

import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import Any

import _repository as repository

HOOKS = re.compile(
    r"(site|user)customize(\..*)?|.*\.(pth|egg-link|py[co])|.*\.(egg|dist)-info|__pycache__", re.IGNORECASE
)
"""Python runs them as it starts, or in place of a source, or finds plug-ins by them: never a part of a solution."""
SETTINGS = re.compile(
    r"conftest\.py|\.?pytest\.(ini|toml)|tox\.ini|setup\.(cfg|py)|pyproject\.toml|\.coveragerc|noxfile\.py|"
    r"\.gitattributes|\.gitmodules|\.envrc|\.npmrc|\.yarnrc(\.yml)?|\.mocharc.*|\.babelrc|"
    r"(jest|vitest|karma|babel|ava|playwright)\.(config|conf)\..*|uv\.(toml|lock)|\.python-version"
)
BUILDS = re.compile(r"(GNU)?[Mm]akefile|.*\.mk|package(-lock)?\.json")
"""They run tests and build what is tested, so a solution may have to change them."""
BUILDERS = re.compile(r"\b(make|gmake|npm|npx|yarn|pnpm)\b")
RUNNERS = re.compile(r"_?pytest(_\w+)?|pluggy|iniconfig|unittest|xdist|coverage|hypothesis|_hypothesis_pytestplugin")
"""Modules that run tests: one of these in the repository's folder comes before the real one."""
FOLDERS = ("test", "tests", "testing")
CHANGED = re.compile(r"^diff --git \"?a/.+? \"?b/(.+?)\"?$", re.MULTILINE)
GIT = ["git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.fileMode=false"]
Seen = dict[str, tuple[int, ...]]


def look() -> Seen:
    """All files of the working tree; a file that is changed looks different."""
    found: Seen = {}
    for folder, folders, names in os.walk(repository.TESTBED):
        if Path(folder) == repository.TESTBED and ".git" in folders:
            folders.remove(".git")
        for name in (*names, *(each for each in folders if os.path.islink(os.path.join(folder, each)))):
            path = os.path.join(folder, name)
            about = os.lstat(path)
            found[os.path.relpath(path, repository.TESTBED)] = (about.st_ino, about.st_size, about.st_ctime_ns)
    return found


def git_state() -> dict[str, str]:
    """What git is told by: its settings, hooks and references, and which objects it has, but not its index."""
    found = {}
    own = repository.TESTBED / ".git"
    for path in sorted([own, *own.rglob("*")] if own.is_dir() else [own]):
        name = path.relative_to(repository.TESTBED).as_posix()
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file() and name.startswith(".git/objects/"):
            found[name] = str(path.stat().st_size)
        elif path.is_file() and name != ".git/index":
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def put_back(before: Seen, row: dict[str, Any], command: str) -> dict[str, list[str]]:
    """Take out of the working tree what a patch must not decide. What was ``removed``, ``restored``, and ``declared``:
    changed by the patch, of use to the tests, and still there.
    """
    after = look()
    changed = sorted({path for path in before.keys() | after.keys() if before.get(path) != after.get(path)})
    tests = CHANGED.findall(str(row.get("test_patch") or ""))
    solution = set(CHANGED.findall(str(row.get("patch") or "")))
    roots = {root for root in map(_root, tests) if root}
    done: dict[str, list[str]] = {"removed": [], "restored": [], "declared": []}
    for path in changed:
        parts = Path(path).parts
        hook = any(HOOKS.fullmatch(part) for part in parts)
        beside = path in roots or any(path == each or path.startswith(f"{each}/") for each in (*roots, *tests))
        if BUILDS.fullmatch(parts[-1]) and BUILDERS.search(command):
            done["declared"] += [path]
        elif not (
            hook or beside or SETTINGS.fullmatch(parts[-1]) or _is_named(path, command) or _shadows(parts, before)
        ):
            continue
        elif path in solution and not hook:
            done["declared"] += [path]
        else:
            done["restored" if path in before else "removed"] += [path]
    for path in (*done["removed"], *done["restored"]):
        _remove(repository.TESTBED / path)
    _check_out(done)
    return done


def _is_named(path: str, command: str) -> bool:
    """Whether the command of the tests names a file."""
    return bool(re.search(rf"(?<![\w/-])(\./)?{re.escape(path)}(?![\w/-])", command))


def _shadows(parts: tuple[str, ...], before: Seen) -> bool:
    """Whether a new module has the name of one that runs tests; the repository may itself be one of these."""
    for depth in (1, 2) if parts[0] in ("src", "lib") else (1,):
        if len(parts) >= depth and RUNNERS.fullmatch(parts[depth - 1].partition(".")[0]):
            top = "/".join(parts[:depth])
            return not any(path == top or path.startswith(f"{top}/") for path in before)
    return False


def _root(test: str) -> str:
    """The folder of tests that a file is in, the outermost of them."""
    parts = Path(test).parts[:-1]
    for count, part in enumerate(parts, 1):
        if part in FOLDERS:
            return "/".join(parts[:count])
    return ""


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()


def _check_out(done: dict[str, list[str]]) -> None:
    """Files of the base commit; others that were there can only be removed."""
    start = str(repository.ready()["start"])
    # the settings of git itself first: they say how the others are written
    for path in sorted(done["restored"], key=lambda each: not each.endswith(".gitattributes")):
        found = repository.run([*GIT, "checkout", "--quiet", "--force", start, "--", path], 60)
        if found["returncode"]:
            done["restored"].remove(path)
            done["removed"].append(path)
