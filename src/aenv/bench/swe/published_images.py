"""Images that SWE-bench publishes for its instances: a system with the repository and its Python.

A sandbox uses the image instead of the host's system. The image is available if it was added with ``aenv base add``, or
if Docker has it or can pull it. Its git history contains later commits, including the solution; so every sandbox gets a
git folder that contains only the base commit.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from aenv.bench.swe import repositories
from aenv.bench.swe.dataset import Instance
from aenv.errors import EnvironmentError
from aenv.images import base_roots, base_systems, docker_cli
from aenv.isolation.files.rooted_paths import resolve_in_root
from aenv.isolation.files.scratch_folders import scratch_folder
from aenv.subprocesses import run
from aenv.tracing.logging import getLogger

log = getLogger("bench.swe")

TESTBED = "testbed"
"""Folder of the repository in the root of an image."""
_SET_UP = ["-c", "user.name=set-up", "-c", "user.email=set-up@localhost", "-c", "commit.gpgsign=false"]


@dataclass(frozen=True, slots=True)
class PublishedImage:
    """An image on this machine."""

    name: str
    base: str
    """Name of the image among the bases."""
    root: Path


def name_of(instance: Instance) -> str:
    """Return the image that a row names, or the official one if the row has neither a Python version nor packages."""
    named = str(instance.row.get("image") or "")
    if named or instance.python or instance.pins:
        return named
    return f"swebench/sweb.eval.x86_64.{instance.name.replace('__', '_1776_').lower()}:latest"


async def find(instance: Instance) -> PublishedImage | None:
    """Return the image of an instance, or None if it is not available.

    Raises:
        EnvironmentError: the image contains no repository.
    """
    name = name_of(instance)
    if not name:
        return None
    known = base_roots.base_name(name)
    if known not in base_systems.names():
        engine = await docker_cli.find()
        if isinstance(engine, str) or not await engine.has(name):
            return None
        log.info("exporting %s from Docker", name)
        with scratch_folder("image") as place:
            await engine.save(name, Path(place, "image.tar"))
            await base_systems.BaseSystems().add(known, Path(place, "image.tar"))
    found = PublishedImage(name, known, (await base_systems.BaseSystems().find(known, Path("/"))).root)
    _repository(found)
    return found


def _repository(image: PublishedImage) -> Path:
    try:
        return Path(resolve_in_root(str(image.root), TESTBED))
    except (OSError, ValueError):
        raise EnvironmentError(f"the image {image.name} has no repository at /{TESTBED}") from None


def make_git(image: PublishedImage, commit: str, target: Path) -> str:
    """Make a git folder with a single commit for the files of an image, and return the commit that they are at.

    Changes that the image's set-up has made are a commit on top, so that they do not become part of a patch.

    Raises:
        EnvironmentError: the image's repository does not have the commit.
    """
    repository = _repository(image)
    with scratch_folder("git") as place:
        repositories.checkout(str(repository), commit, Path(place, "tree"))
        shutil.move(Path(place, "tree", ".git"), target)
    git = ["git", f"--git-dir={target}", f"--work-tree={repository}", "-c", "core.fileMode=false"]
    run([*git, "add", "--update"]).checked()
    if not run([*git, "diff", "--cached", "--quiet"]).ok:
        words = ["commit", "--quiet", "--no-verify", "-m", "set-up"]
        run([*git, *_SET_UP, *words]).checked()
    repositories.ignore_untracked(target, repository)
    return run([*git, "rev-parse", "HEAD"]).checked().stdout.strip()
