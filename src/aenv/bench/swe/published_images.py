"""The image of an instance, as SWE-bench publishes it: a system with the repository and its Python in it.

It is what a sandbox has in place of the host's system. It is there when it was given its name (``aenv base add``), or
when Docker has it or can get it. Its git knows what came later, the solution too: so a git of the base commit alone is
made of it, which takes its place in every sandbox.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from aenv.bench.swe import repositories
from aenv.bench.swe.dataset import Instance
from aenv.errors import EnvironmentError
from aenv.images import base_roots, base_systems, docker_cli
from aenv.isolation.files.rooted_paths import resolve_in_root
from aenv.tracing.logging import getLogger

log = getLogger("bench.swe")

TESTBED = "testbed"
"""Where images have the repository, at their root."""
_SET_UP = ["-c", "user.name=set-up", "-c", "user.email=set-up@localhost", "-c", "commit.gpgsign=false"]


@dataclass(frozen=True, slots=True)
class PublishedImage:
    """An image of this machine."""

    name: str
    base: str
    """What it is called among the bases."""
    root: Path


def name_of(instance: Instance) -> str:
    """The image that a row names; or, where it does not say how else its tests are run, the official one's name."""
    named = str(instance.row.get("image") or "")
    if named or instance.python or instance.pins:
        return named
    return f"swebench/sweb.eval.x86_64.{instance.name.replace('__', '_1776_').lower()}:latest"


async def find(instance: Instance) -> PublishedImage | None:
    """The image of an instance, where it can be had.

    Raises:
        EnvironmentError: it can, but it has no repository in it.
    """
    name = name_of(instance)
    if not name:
        return None
    known = base_roots.base_name(name)
    if known not in base_systems.names():
        engine = await docker_cli.find()
        if isinstance(engine, str) or not await engine.has(name):
            return None
        log.info("taking %s out of Docker", name)
        with tempfile.TemporaryDirectory(prefix="aenv-image-") as place:
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
    """Make a git folder that knows one commit, for the files of an image; the commit that they are at.

    What setting up the image has changed in them is a commit on top, so that it is nobody's solution.

    Raises:
        EnvironmentError: the image's repository does not have the commit.
    """
    repository = _repository(image)
    with tempfile.TemporaryDirectory(prefix="aenv-git-") as place:
        repositories.checkout(str(repository), commit, Path(place, "tree"))
        shutil.move(Path(place, "tree", ".git"), target)
    git = ["git", f"--git-dir={target}", f"--work-tree={repository}", "-c", "core.fileMode=false"]
    subprocess.run([*git, "add", "--update"], check=True, capture_output=True)
    if subprocess.run([*git, "diff", "--cached", "--quiet"], check=False).returncode:
        words = ["commit", "--quiet", "--no-verify", "-m", "set-up"]
        subprocess.run([*git, *_SET_UP, *words], check=True, capture_output=True)
    repositories.ignore_what_is_there(target, repository)
    said = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return said.stdout.strip()
