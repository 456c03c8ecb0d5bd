"""Package layers: the packages of an environment, installed once per list of requirements and shared by all."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.metadata
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from aenv import config
from aenv.client.caller_variables import package_index
from aenv.errors import LoadError
from aenv.isolation.files.atomic_folders import atomic_folder
from aenv.schema.requirements import LOCK, OWN, REQUIREMENTS, is_current
from aenv.tracing.logging import getLogger

log = getLogger("layers")

_LINE = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:==\s*(?P<version>[^\s;,]+))?\s*$")
_PLAIN = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9._,\s-]+\])?\s*([<>=!~]=?[^/@:]*)?(;[^/@:]*)?$")
"""A line with the name and version of a package only. Installing runs on the host, so paths and options are refused."""
_HASHES = re.compile(r"(\s+--hash=sha256:[0-9a-f]{64})+$")


def requirements_of(project: Path) -> list[str]:
    """Return the project's requirements that this interpreter does not have.

    They come from its lock, with versions and digests, where that is current.

    Raises:
        LoadError: a line is more than the name and version of a package.
    """
    name, text = _read(project)
    lines = [line.partition("#")[0].strip() for line in text.replace("\\\n", " ").splitlines()]
    wanted = [line for line in lines if line and not _satisfied(_HASHES.sub("", line))]
    for line in wanted:
        plain = _HASHES.sub("", line)
        if " -" in plain or not _PLAIN.match(plain):
            raise LoadError(
                f"{name}: '{line[:200]}': only names and versions of packages are installed for a sandbox, "
                "like 'numpy>=2'; options, paths and addresses are not"
            )
    return wanted


def _read(project: Path) -> tuple[str, str]:
    """Return the name and text of the lock if it is current, else of the requirements."""
    try:
        raw = (project / REQUIREMENTS).read_bytes()
    except OSError:
        return REQUIREMENTS, ""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        locked = (project / LOCK).read_text()
        if is_current(locked, raw):
            return LOCK, locked
    return REQUIREMENTS, raw.decode(errors="replace")


def _satisfied(line: str) -> bool:
    known = _LINE.match(line.partition(";")[0].strip())
    if known is None:
        return re.split(r"[\s\[<>=!~;]", line, maxsplit=1)[0].lower() == OWN
    if known["name"].lower() == OWN:
        return True
    try:
        version = importlib.metadata.version(known["name"])
    except importlib.metadata.PackageNotFoundError:
        return False
    return known["version"] in (None, version)


def _named(line: str) -> str:
    return _HASHES.sub("", line).strip()


def cache_folder() -> Path:
    """Return the folder of all layers."""
    return config.cache_folder() / "layers"


async def layer(requirements: list[str], folder: Path, variables: Mapping[str, str] | None = None) -> Path:
    """Return a folder with these packages; install them if it does not exist.

    ``variables``: the caller's proxies, certificates and package index. Another index has another layer.

    Raises:
        LoadError: they cannot be installed.
    """
    python = f"{sys.implementation.cache_tag}-{os.uname().machine}"
    wanted = [python, *sorted(requirements), *package_index(variables or {})]
    digest = hashlib.sha256("\n".join(wanted).encode()).hexdigest()[:32]
    target = folder / digest
    if target.is_dir():
        return target
    with atomic_folder(target) as made:
        made.chmod(0o755)
        log.info("installing %s", ", ".join(map(_named, requirements)))
        await _install(requirements, made, variables or {})
    return target


async def _install(requirements: list[str], target: Path, variables: Mapping[str, str]) -> None:
    """Install from wheels only: building a package would run its code outside of any sandbox."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv:
        command = [uv, "pip", "install", "--python", sys.executable, "--compile-bytecode", "--no-progress"]
    else:
        command = [sys.executable, "-P", "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--quiet"]
    if any("--hash=" in line for line in requirements):  # a lock is complete, so no other package is installed
        command += ["--require-hashes", "--no-deps"]
    wanted = target.with_name(f"{target.name}.txt")
    wanted.write_text("".join(f"{line}\n" for line in requirements))
    process = await asyncio.create_subprocess_exec(
        *command, "--only-binary", ":all:", "--target", str(target), "--requirement", str(wanted),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        cwd="/",  # so that no uv.toml or pip/ of the current folder is used
        env={**os.environ, **variables},
    )  # fmt: skip
    try:
        output, _ = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    finally:
        wanted.unlink(missing_ok=True)
    if process.returncode:
        tail = output.decode(errors="replace").strip()[-1500:]
        if "No module named pip" in tail:
            tail = "there is neither uv nor pip; install one: python -m ensurepip, or uv from your package manager"
        raise LoadError(f"requirements.txt: {', '.join(map(_named, requirements))} cannot be installed:\n{tail}")
