"""The repository of an instance: its base commit and nothing that came after, from a URL, a mirror or a local clone."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from aenv.errors import EnvironmentError, UsageError

GITHUB = "https://github.com"
_SERVE = "git -c safe.directory=* -c uploadpack.allowAnySHA1InWant=true upload-pack"
_VERSION = re.compile(r"\d+(\.\d+)+$")
_REPO = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_COMMIT = re.compile(r"[0-9A-Za-z_][\w./-]*")
_VARIABLES = {"GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}
"""git must not fetch by itself what a repository that is not ours tells it to."""


def source_of(repo: str, repos: str) -> str:
    """Where a repository is fetched from: a folder with clones, or the beginning of URLs.

    Raises:
        UsageError: the folder has no clone of it, or that is no name of a repository.
    """
    if not _REPO.fullmatch(repo):
        raise UsageError(f"'{repo[:200]}' is not the name of a repository, like pallets/flask")
    if re.match(r"\w+://", repos) or not repos:
        return f"{(repos or GITHUB).rstrip('/')}/{repo}"
    folder = Path(repos).expanduser().resolve()
    owner, _, name = repo.partition("/")
    for place in (f"{owner}/{name}", f"{owner}__{name}", name):
        for found in (folder / place, folder / f"{place}.git"):
            if (found / ".git").exists() or (found / "HEAD").is_file():
                return str(found)
    raise UsageError(
        f"there is no clone of {repo} in {folder}",
        {"hint": f"Put one at {folder / owner / name}, or leave the option out to fetch from {GITHUB}."},
    )


def checkout(source: str, commit: str, target: Path) -> None:
    """Make a working tree of one commit. There is no history: a later commit may be the solution.

    Raises:
        EnvironmentError: it cannot be had.
    """
    _check_commit(commit)
    local = [] if "://" in source else ["--upload-pack", _SERVE]
    address = source if "://" in source else f"file://{source}"
    target.mkdir(parents=True)
    for command in (
        ["init", "--quiet", "--initial-branch", "main"],
        ["fetch", "--quiet", "--depth", "1", "--no-tags", *local, "--end-of-options", address, commit],
        ["-c", "advice.detachedHead=false", "checkout", "--quiet", "FETCH_HEAD"],
    ):
        done = subprocess.run(
            ["git", *command], cwd=target, capture_output=True, text=True, check=False, env={**os.environ, **_VARIABLES}
        )
        if done.returncode:
            raise EnvironmentError(
                f"{commit[:12]} cannot be had from {source}: {done.stderr.strip()[-800:]}",
                details={"hint": "Name a folder with clones, or a mirror, with --repos."},
            )
    (target / ".git" / "FETCH_HEAD").unlink(missing_ok=True)


def _check_commit(commit: str) -> None:
    """Refuse what git would take for an option: some of its options run commands."""
    if not _COMMIT.fullmatch(commit):
        raise UsageError(f"'{commit[:200]}' is not a commit")


def version_at(source: str, commit: str) -> str | None:
    """The last version that was tagged before a commit, where the source is a clone that knows it."""
    if "://" in source:
        return None
    _check_commit(commit)
    command = ["git", "-c", "safe.directory=*", "-C", source, "describe", "--tags", "--abbrev=0", commit]
    variables = {**os.environ, **_VARIABLES}
    said = subprocess.run(command, capture_output=True, text=True, check=False, env=variables).stdout.strip()
    found = _VERSION.search(said)
    return found[0] if found else None


def ignore_what_is_there(git: Path, repository: Path) -> None:
    """Have git overlook what set-up has left in the working tree, and what running tests leaves: it is no solution."""
    command = ["git", f"--git-dir={git}", f"--work-tree={repository}", "ls-files", "--others", "--exclude-standard"]
    said = subprocess.run([*command, "-z"], cwd=repository, capture_output=True, text=True, check=True).stdout
    left = [f"/{name}" for name in said.split("\0") if name and not name.startswith(".git/")]
    exclude = git / "info" / "exclude"
    exclude.parent.mkdir(exist_ok=True)
    exclude.write_text("\n".join(["__pycache__/", "*.py[co]", ".pytest_cache/", *left]) + "\n")
