"""Prepare the environments of an instance: copies of the project `swebench` with the repository and its Python.

There are two projects: ``agent`` contains the issue, and ``grade`` also the deciding tests; they share their files as
hard links. The repository is installed with its own commands, in a sandbox, since its set-up is untrusted code. If the
image of the instance is available, the repository is installed in it already, and the projects use it as their base.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aenv import config
from aenv.bench.swe import published_images, pythons, repositories
from aenv.bench.swe.dataset import PUBLIC, Instance
from aenv.errors import EnvironmentError
from aenv.isolation.files.atomic_folders import atomic_folder
from aenv.isolation.files.tar_limits import BoundedTarInfo
from aenv.project.builtin_envs import folder as builtin_folder
from aenv.sdk.environment import Environment
from aenv.storage.cache_folders import CacheFolder
from aenv.tracing.logging import getLogger

log = getLogger("bench.swe")

FORMAT = 1
"""Format version of prepared projects; projects of another version are prepared again."""
NAME = "swebench"
INSTALL_SECONDS = 900.0
_PIP = re.compile(r"^\s*(python -m )?pip3? install\b.*$", re.MULTILINE)
_CHANGES = "/tmp/changes.tar"
_COLLECT = f"""
cd /app && find testbed python -cnewer /tmp/before \\( -type f -o -type l \\) ! -path '*/__pycache__/*' \
    ! -path 'testbed/.git/*' -print0 | tar --null --files-from - --create --file {_CHANGES}
"""


@dataclass(frozen=True, slots=True)
class PreparedInstance:
    """The two projects of an instance."""

    agent: Path
    grade: Path
    image: str = ""
    """Image that the projects use as their base; empty: the host's system."""


async def prepare(instance: Instance, repos: str, *, use_image: bool = True) -> PreparedInstance:
    """Return the projects of an instance, prepared on first use. They use its image if that is available.

    Raises:
        UsageError, EnvironmentError: the repository, the Python version or a package is not available.
    """
    image = await published_images.find(instance) if use_image else None
    source = "" if image else repositories.source_of(str(instance.row["repo"]), repos)
    projects = cache()
    name = f"{instance.name}-{_digest(instance, image)}"
    while (target := projects.use(name)) is None:
        with atomic_folder(projects.folder / name) as made:
            made.chmod(0o755)
            await _make(instance, source, image, made)
    return PreparedInstance(target / "agent", target / "grade", image.name if image else "")


def folder() -> Path:
    """Return the cache folder of prepared projects."""
    return config.cache_folder() / "swe"


def cache() -> CacheFolder:
    """Return the cache of prepared projects."""
    return CacheFolder("swe", folder(), "repositories of SWE-bench tasks")


def _digest(instance: Instance, image: published_images.PublishedImage | None) -> str:
    """Return a digest of everything that goes into the projects."""
    project = builtin_folder() / NAME
    files = sorted([*project.glob("src/*.py"), *project.glob("requirements.*"), project / "config.json"])
    code = [(str(path.relative_to(project)), hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]
    on = [image.base, str(image.root)] if image else []
    inputs = [FORMAT, instance.row, instance.python, instance.pins, instance.build, code, *on]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True, default=str).encode()).hexdigest()[:12]


async def _make(instance: Instance, source: str, image: published_images.PublishedImage | None, root: Path) -> None:
    agent = root / "agent"
    log.info("preparing %s", instance.name)
    shutil.copytree(builtin_folder() / NAME, agent, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    if image is not None:
        await asyncio.to_thread(_set_up_on_image, image, instance, agent)
    else:
        await asyncio.to_thread(_set_up, instance, source, agent)
        await _install_repository(instance, agent)
        testbed = agent / "testbed"
        await asyncio.to_thread(repositories.ignore_untracked, testbed / ".git", testbed)
    await asyncio.to_thread(shutil.copytree, agent, root / "grade", symlinks=True, copy_function=os.link)
    _write(root / "grade" / "hidden" / "instance.json", instance.row)


def _set_up_on_image(image: published_images.PublishedImage, instance: Instance, agent: Path) -> None:
    """Add a git folder without later commits; the repository and its Python are in the image."""
    start = published_images.make_git(image, str(instance.row["base_commit"]), agent / "git")
    _describe(instance, agent, start=start, pretend_version=_version(instance))
    config = json.loads((agent / "config.json").read_text())
    config["deployConfig"]["base"] = image.base
    _write(agent / "config.json", config)


def _set_up(instance: Instance, source: str, agent: Path) -> None:
    commit = str(instance.row["base_commit"])
    repositories.checkout(source, commit, agent / "testbed")
    left_out = pythons.install(agent, instance.python, instance.pins, instance.build, agent / "testbed")
    version = repositories.version_at(source, commit) or _version(instance)
    _describe(instance, agent, start=commit, pretend_version=version, left_out=left_out)


def _version(instance: Instance) -> str:
    return f"{instance.row.get('version') or 1}.0"


def _describe(instance: Instance, agent: Path, **more: Any) -> None:
    """Write the columns that an agent may see, and ``more`` for its tools."""
    _write(agent / "task" / "instance.json", {name: instance.row.get(name) for name in PUBLIC} | more)


async def _install_repository(instance: Instance, project: Path) -> None:
    """Run the install commands of the row or of its test script in a sandbox, and copy the changed files back."""
    script = str(instance.row["eval_script"]).partition(">>>>> Start Test Output")[0]
    commands = instance.row.get("install") or [found[0].strip() for found in _PIP.finditer(script)]
    if not commands:
        return
    async with Environment(str(project), network="blackhole", ttl="2h") as env:
        await env.exec("touch /tmp/before")
        for command in commands:
            arguments = {"command": command, "timeout": INSTALL_SECONDS}
            done: Any = (await env.call_tool("shell", arguments, timeout=INSTALL_SECONDS + 30)).data
            if not isinstance(done, dict) or done["returncode"]:
                output = done["output"][-1500:] if isinstance(done, dict) else str(done)
                raise EnvironmentError(f"{instance.name}: '{command}' failed in its sandbox:\n{output}")
        collected = await env.exec(_COLLECT, timeout=300)
        if collected.exit_code:
            raise EnvironmentError(f"{instance.name}: cannot collect the installed files: {collected.stderr[-500:]}")
        unpack_changes(await env.download(_CHANGES, timeout=300), project)


def unpack_changes(data: bytes, project: Path) -> None:
    """Unpack files and links of a sandbox, which is untrusted.

    Nothing is written through a link or into .git, whose settings can name commands that git runs on the host.
    """
    try:
        _extract(data, project)
    except (tarfile.TarError, EOFError, ValueError, OSError, RecursionError) as error:
        raise EnvironmentError(f"cannot unpack the archive of a sandbox: {error}") from None


def _extract(data: bytes, project: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(data), tarinfo=BoundedTarInfo) as archive:
        for member in archive:
            parts = Path(member.name).parts
            target = project.joinpath(*parts)
            if not parts or ".." in parts or ".git" in parts or parts[0] not in ("testbed", "python"):
                raise EnvironmentError(f"a sandbox returned a file at {member.name}")
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.parent.resolve().is_relative_to(project.resolve()):
                raise EnvironmentError(f"a sandbox returned a file behind a link: {member.name}")
            target.unlink(missing_ok=True)
            if member.issym():
                target.symlink_to(member.linkname)
            elif member.isfile():
                content = archive.extractfile(member)
                target.write_bytes(content.read() if content else b"")
                target.chmod(0o755 if member.mode & 0o100 else 0o644)


def _write(path: Path, document: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2, default=str) + "\n")
