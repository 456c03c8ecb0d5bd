"""Install packages into a folder with uv, or with pip where there is no uv.

Only wheels are installed: building a package would run its code outside of any sandbox.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from aenv.engines.indirect_requirements import distributions, is_direct, missing_requirements
from aenv.engines.requirement_lines import redacted
from aenv.errors import LoadError, StorageFull, Unavailable
from aenv.images.uv_program import uv_program
from aenv.isolation.files.trees import remove_tree
from aenv.subprocesses import run_async

_NO_NETWORK = re.compile(
    r"(?i)dns error|failed to lookup|name resolution|name or service not known|network is unreachable|no route to host"
    r"|tcp connect error|connection (refused|reset|aborted)|failed to establish a new connection|error sending request"
    r"|(operation|connection|connect|read) timed out|proxyerror|tunnel|http status server error"
)
_PROGRESS = re.compile(
    r"WARNING: (Retrying|Location)|Looking in |Collecting |\s+(Downloading|Using cached) |Processing "
)
"""Start of a line of pip that says nothing about a failure."""
_NO_ROOM = re.compile(r"(?i)no space left on device|os error 28\b|disk quota exceeded")
_PIP_OPTIONS = ("--disable-pip-version-check", "--no-input", "--progress-bar=off")
MOST_ROUNDS = 30
_GET = "Install one: python -m ensurepip, or uv from your package manager"


async def install(
    lines: Sequence[str], options: Sequence[tuple[str, str]], target: Path, variables: Mapping[str, str], names: str
) -> None:
    """Install the packages of a requirements file into a folder. ``options``: as `RequirementFile.options`.

    Raises:
        LoadError: there is no such package or version, or it has no wheel.
        StorageFull: there is no room for it.
        Unavailable: the package index cannot be reached.
    """
    command = [*_installer(), "--only-binary", ":all:", "--target", str(target)]
    if any("--hash=" in line for line in lines):  # a lock is complete, so no other package is installed
        await _run([*command, "--require-hashes", "--no-deps"], lines, options, target, variables, names)
        return
    if "--python" not in command:  # pip
        await _install_in_rounds(command, lines, options, target, variables, names)
        return
    # uv follows places that packages name only where requirements.txt itself names the place of the package.
    direct = [line for line in lines if is_direct(line)]
    others = [line for line in lines if line not in direct]
    if direct:
        await _run([*command, "--no-deps"], direct, options, target, variables, names)
        others += missing_requirements(target, lines)
    if others:
        await _run(command, others, options, target, variables, names)


async def _install_in_rounds(
    command: list[str],
    lines: Sequence[str],
    options: Sequence[tuple[str, str]],
    target: Path,
    variables: Mapping[str, str],
    names: str,
) -> None:
    """Install packages with pip, and then what they require, until nothing is missing.

    pip would follow places that packages name, and build what is there. So it never looks for requirements itself.
    """
    wanted, new = list(lines), list(lines)
    for _ in range(MOST_ROUNDS):
        await _run([*command, "--no-deps"], new, options, target, variables, names)
        new = [line for line in missing_requirements(target, wanted) if line not in wanted]
        if not new:
            return
        wanted += new
        there = {canonicalize_name(each.metadata["Name"]) for each in distributions(target)}
        if there & {canonicalize_name(Requirement(line).name) for line in new}:  # in a version that will not do
            remove_tree(target)
            target.mkdir(mode=0o755)
            new = wanted
    raise LoadError(f"requirements.txt: {names} cannot be installed: there is no end to what they require")


async def _run(
    command: list[str],
    lines: Sequence[str],
    options: Sequence[tuple[str, str]],
    target: Path,
    variables: Mapping[str, str],
    names: str,
) -> None:
    """Run the installer once, for these lines."""
    command = list(command)
    wanted = target.with_name(f"{target.name}.txt")
    limits = target.with_name(f"{target.name}.constraints.txt")
    for name, value in options:
        if name == "--constraint":
            continue
        if name == "--pre" and "--python" in command:  # uv
            name = "--prerelease=allow"
        command += [name, value] if value else [name]
    constraints = "".join(value for name, value in options if name == "--constraint")
    if constraints:
        limits.write_text(constraints)
        command += ["--constraint", str(limits)]
    wanted.write_text("".join(f"{line}\n" for line in lines))
    try:
        done = await run_async(
            [*command, "--requirement", str(wanted)],
            stderr=subprocess.STDOUT,
            cwd="/",  # so that no uv.toml or pip/ of the current folder is used
            env={**os.environ, **variables},
        )
    finally:
        wanted.unlink(missing_ok=True)
        limits.unlink(missing_ok=True)
    if not done.ok:
        raise _failure(done.stdout.strip(), names)


def _installer() -> list[str]:
    """Return the start of an install command: uv of this interpreter or PATH, else pip, else the pip of ensurepip."""
    uv = uv_program()
    if uv is not None:
        return [str(uv), "pip", "install", "--python", sys.executable, "--compile-bytecode", "--no-progress"]
    pip = ["-m", "pip"]
    if importlib.util.find_spec("pip") is None:
        bundled = importlib.util.find_spec("ensurepip")
        folder = Path(bundled.origin).parent / "_bundled" if bundled is not None and bundled.origin else Path("/")
        wheel = next(folder.glob("pip-*.whl"), None)
        if wheel is None:
            raise LoadError("requirements.txt: there is neither uv nor pip to install packages with", {"hint": _GET})
        pip = [str(wheel / "pip")]
    return [sys.executable, "-P", *pip, "install", *_PIP_OPTIONS]


def _failure(output: str, names: str) -> LoadError | StorageFull | Unavailable:
    if _NO_ROOM.search(output):
        return StorageFull(
            f"requirements.txt: {names} cannot be installed: no space left on device",
            details={"hint": "Free space, for example with: aenv cache prune"},
        )
    lines = [line for line in redacted(output).splitlines() if not _PROGRESS.match(line)]
    tail = "\n".join(lines)[-1500:]
    if _NO_NETWORK.search(output):
        return Unavailable(
            f"requirements.txt: {names} cannot be installed, because the package index cannot be reached:\n{tail}",
            details={"hint": "Check the network, or the index and proxy: UV_INDEX_URL or PIP_INDEX_URL, HTTPS_PROXY"},
        )
    return LoadError(
        f"requirements.txt: {names} cannot be installed:\n{tail}",
        {"hint": "Check the names and versions in requirements.txt"},
    )
