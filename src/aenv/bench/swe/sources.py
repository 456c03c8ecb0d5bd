"""The repository of an instance: its base commit and nothing that came after, from a URL, a mirror or a local clone."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from aenv.errors import EnvironmentError, UsageError

GITHUB = "https://github.com"
_SERVE = "git -c safe.directory=* -c uploadpack.allowAnySHA1InWant=true upload-pack"
_VERSION = re.compile(r"\d+(\.\d+)+$")


def source_of(repo: str, repos: str) -> str:
    """Where a repository is fetched from: a folder with clones, or the beginning of URLs.

    Raises:
        UsageError: the folder has no clone of it.
    """
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
    local = [] if "://" in source else ["--upload-pack", _SERVE]
    address = source if "://" in source else f"file://{source}"
    target.mkdir(parents=True)
    for command in (
        ["init", "--quiet", "--initial-branch", "main"],
        ["fetch", "--quiet", "--depth", "1", "--no-tags", *local, address, commit],
        ["-c", "advice.detachedHead=false", "checkout", "--quiet", "FETCH_HEAD"],
    ):
        done = subprocess.run(["git", *command], cwd=target, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EnvironmentError(
                f"{commit[:12]} cannot be had from {source}: {done.stderr.strip()[-800:]}",
                details={"hint": "Name a folder with clones, or a mirror, with --repos."},
            )
    (target / ".git" / "FETCH_HEAD").unlink(missing_ok=True)


def version_at(source: str, commit: str) -> str | None:
    """The last version that was tagged before a commit, where the source is a clone that knows it."""
    if "://" in source:
        return None
    command = ["git", "-c", "safe.directory=*", "-C", source, "describe", "--tags", "--abbrev=0", commit]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
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
