"""Check out the repository of an instance at its base commit, without later commits, from a URL or a local clone."""

from __future__ import annotations

import os
import re
from pathlib import Path

from aenv.errors import EnvironmentError, UsageError
from aenv.subprocesses import run

GITHUB = "https://github.com"
_SERVE = "git -c safe.directory=* -c uploadpack.allowAnySHA1InWant=true upload-pack"
_VERSION = re.compile(r"\d+(\.\d+)+$")
_REPO = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_COMMIT = re.compile(r"[0-9A-Za-z_][\w./-]*")
_VARIABLES = {"GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}
"""Variables that keep git from fetching objects that an untrusted repository refers to, and from prompting."""


def source_of(repo: str, repos: str) -> str:
    """Return the source of a repository: a clone in the folder ``repos``, or a URL with the prefix ``repos``.

    Raises:
        UsageError: the folder has no clone of the repository, or its name is invalid.
    """
    if not _REPO.fullmatch(repo):
        raise UsageError(f"invalid repository name '{repo[:200]}'; expected one like pallets/flask")
    if re.match(r"\w+://", repos) or not repos:
        return f"{(repos or GITHUB).rstrip('/')}/{repo}"
    folder = Path(repos).expanduser().resolve()
    owner, _, name = repo.partition("/")
    for place in (f"{owner}/{name}", f"{owner}__{name}", name):
        for found in (folder / place, folder / f"{place}.git"):
            if (found / ".git").exists() or (found / "HEAD").is_file():
                return str(found)
    raise UsageError(
        f"no clone of {repo} in {folder}",
        {"hint": f"Put one at {folder / owner / name}, or leave the option out to fetch from {GITHUB}."},
    )


def checkout(source: str, commit: str, target: Path) -> None:
    """Make a working tree of one commit, without history: a later commit may be the solution.

    Raises:
        EnvironmentError: the commit cannot be fetched.
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
        done = run(["git", *command], cwd=target, env={**os.environ, **_VARIABLES})
        if not done.ok:
            raise EnvironmentError(
                f"cannot fetch {commit[:12]} from {source}: {done.stderr.strip()[-800:]}",
                details={"hint": "Name a folder with clones, or a mirror, with --repos."},
            )
    (target / ".git" / "FETCH_HEAD").unlink(missing_ok=True)


def _check_commit(commit: str) -> None:
    """Reject a value that git would take for an option, since some of its options run commands."""
    if not _COMMIT.fullmatch(commit):
        raise UsageError(f"invalid commit '{commit[:200]}'")


def version_at(source: str, commit: str) -> str | None:
    """Return the last tagged version before a commit, if the source is a clone that has the tag."""
    if "://" in source:
        return None
    _check_commit(commit)
    command = ["git", "-c", "safe.directory=*", "-C", source, "describe", "--tags", "--abbrev=0", commit]
    tag = run(command, env={**os.environ, **_VARIABLES}).stdout.strip()
    found = _VERSION.search(tag)
    return found[0] if found else None


def ignore_untracked(git: Path, repository: Path) -> None:
    """Make git ignore untracked files of the set-up and of test runs, so that they do not become part of a patch."""
    command = ["git", f"--git-dir={git}", f"--work-tree={repository}", "ls-files", "--others", "--exclude-standard"]
    output = run([*command, "-z"], cwd=repository).checked().stdout
    untracked = [f"/{name}" for name in output.split("\0") if name and not name.startswith(".git/")]
    exclude = git / "info" / "exclude"
    exclude.parent.mkdir(exist_ok=True)
    exclude.write_text("\n".join(["__pycache__/", "*.py[co]", ".pytest_cache/", *untracked]) + "\n")
