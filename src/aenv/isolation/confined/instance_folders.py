"""Folders of sandboxes without a mount namespace: one of each sandbox's own, and one with the project for all.

    <temporary folder>/aenv-confined-PID-RANDOM/project        the project as shipped, without its private folder
    <temporary folder>/aenv-confined-PID-RANDOM/instances/ID   one sandbox: app, home, tmp

The ids cannot be guessed and ``instances`` cannot be listed. Where the server is root, ``instances`` is root's, and the
sandboxes have another user: they cannot change its mode either.
"""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from aenv.isolation.files import private_folder
from aenv.isolation.files.scratch_folders import scratch_path

APP, HOME, TEMPORARY = "app", "home", "tmp"


@dataclass(frozen=True, slots=True)
class InstanceFolder:
    """The folder of one sandbox: all that it may write to."""

    path: str

    def fill(self, project: str) -> None:
        """Create it, with a copy of the project."""
        os.mkdir(self.path, 0o700)
        for name in (HOME, TEMPORARY):
            os.mkdir(f"{self.path}/{name}", 0o700)
        shutil.copytree(project, self.app, symlinks=True)

    @property
    def app(self) -> str:
        """The sandbox's own copy of the project."""
        return f"{self.path}/{APP}"


@dataclass(frozen=True, slots=True)
class SharedFolder:
    """The folder of a zygote, with those of its sandboxes."""

    path: str

    @classmethod
    def create(cls, project: str | None, files: list[str] | None, *, for_another_user: bool) -> SharedFolder:
        """Create it, with what sandboxes may see of the project."""
        made = cls(scratch_path("confined"))
        os.chmod(made.path, 0o711 if for_another_user else 0o700)
        os.mkdir(made.instances)
        os.chmod(made.instances, 0o1733 if for_another_user else 0o300)
        os.mkdir(made.project)
        if project is not None:
            names = os.listdir(project) if files is None else files
            for name in names:
                if files is None and name == private_folder.FOLDER:
                    continue
                _copy(os.path.join(project, name), os.path.join(made.project, name))
        _make_readable(made.project)
        return made

    @property
    def project(self) -> str:
        """The project as shipped, which modules are imported from."""
        return f"{self.path}/project"

    @property
    def instances(self) -> str:
        """The folder of the sandboxes' folders."""
        return f"{self.path}/instances"


def _copy(source: str, target: str) -> None:
    """Copy a file, a link or a folder; sockets, pipes and devices are left out."""
    mode = os.lstat(source).st_mode
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISDIR(mode):
        shutil.copytree(source, target, symlinks=True, ignore=_special_files)
    elif stat.S_ISREG(mode):
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


def _special_files(folder: str, names: list[str]) -> list[str]:
    modes = {name: os.lstat(os.path.join(folder, name)).st_mode for name in names}
    return [
        name for name, mode in modes.items() if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))
    ]


def _make_readable(top: str) -> None:
    for folder, _, names in os.walk(top):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            if not os.path.islink(path):
                mode = os.stat(path).st_mode
                os.chmod(path, mode | (0o755 if path == folder else 0o644))
