"""Environment variables for programs that tools start, so that they find this Python and its packages.

They are not set for all programs: an instance may have other interpreters, which cannot import these packages.
"""

from __future__ import annotations

import os
import re
import sys

_LAYER = re.compile(r".*/layers/[0-9a-f]{32}")
"""Folder with the packages of requirements.txt, as `aenv.engines.package_layers` names it."""


def package_folders() -> list[str]:
    """Return the folders on ``sys.path`` with the packages of requirements.txt."""
    return [folder for folder in sys.path if _LAYER.fullmatch(folder)]


def python_variables() -> dict[str, str]:
    """Return the variables of this process, with ``python`` and the packages of requirements.txt added.

    Pass them to programs that need them: ``subprocess.run("python -m pytest", shell=True, env=python_variables())``.
    ``python`` is then the interpreter that runs the environment. Other interpreters should not get them.
    """
    path = [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]
    packages = [*package_folders(), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = {**os.environ, "PATH": os.pathsep.join(path)}
    return found | ({"PYTHONPATH": os.pathsep.join(packages)} if packages else {})
