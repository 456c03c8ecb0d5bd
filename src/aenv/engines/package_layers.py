"""Package layers: the packages of an environment, installed once per list of requirements and shared by all.

`Environment`, services, benchmarks, ``aenv run`` and ``aenv test`` all import an environment's packages from its layer.
Which packages are missing is decided with `packaging`, which is imported only for projects that list packages.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aenv import config
from aenv.client.caller_variables import caller_variables, package_index
from aenv.errors import LoadError
from aenv.isolation.files.atomic_folders import atomic_folder
from aenv.isolation.network.allow_list import AllowList, EgressRefused
from aenv.isolation.network.policy import Network
from aenv.schema.requirements import REQUIREMENTS, lists_others
from aenv.storage.cache_folders import CacheFolder
from aenv.tracing.logging import getLogger
from aenv.tracing.waits import waiting_for

if TYPE_CHECKING:
    from aenv.engines.requirement_lines import RequirementFile

log = getLogger("layers")

PUBLIC_INDEX = ("pypi.org", "files.pythonhosted.org")


@dataclass(frozen=True, slots=True)
class PackageList:
    """The packages to install for a project, and where to look for them."""

    lines: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    shown: tuple[str, ...] = ()
    """The lines for people: without digests and passwords."""

    def __bool__(self) -> bool:
        return bool(self.lines)


async def folders_of(
    project: Path, *, network: Network | None = None, variables: Mapping[str, str] | None = None
) -> list[str]:
    """Return the folders to import the project's packages from; install them if necessary.

    ``network``: the network rules of the sandbox; None: there is no sandbox. ``variables``: as for `layer`; None: those
    of this process.

    Raises:
        LoadError: a requirement is refused or cannot be installed.
        Unavailable: the package index cannot be reached.
    """
    variables = caller_variables() if variables is None else variables
    wanted = packages_for(project, network, variables)
    return [str(await layer(wanted, cache_folder(), variables))] if wanted else []


def on_python_path(folders: Sequence[str]) -> dict[str, str]:
    """Return this process's environment variables, for a program that imports from these folders as well."""
    if not folders:
        return dict(os.environ)
    before = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*folders, *([before] if before else [])])}


def packages_for(
    project: Path, network: Network | None = None, variables: Mapping[str, str] | None = None
) -> PackageList:
    """Return the project's requirements that this interpreter does not have.

    Raises:
        LoadError: a line is invalid, would run code on the host, or needs a host that the network rules do not allow.
    """
    try:
        text = (project / REQUIREMENTS).read_text(errors="replace")
    except OSError:
        return PackageList()
    if not lists_others(text):
        return PackageList()
    from aenv.engines import installed_packages, requirement_lines

    found = requirement_lines.read(project)
    missing = [line for line in found.lines if not installed_packages.is_satisfied(line)]
    for line in missing:
        if line.refused:
            raise LoadError(
                f"{line.where}: '{line.shown[:200]}' cannot be installed: {line.refused}",
                {"hint": f"To use it, {requirement_lines.HINT}"},
            )
    if not missing:
        return PackageList()
    if network is not None:
        _check_hosts(found, {line.shown for line in missing}, network, variables or {})
    return PackageList(
        tuple(line.text for line in missing), tuple(found.options), tuple(line.shown for line in missing)
    )


def _check_hosts(found: RequirementFile, missing: set[str], network: Network, variables: Mapping[str, str]) -> None:
    """Raise LoadError for a URL that the network rules do not allow, unless it is the platform's own index."""
    from aenv.engines.requirement_lines import host_and_port

    if network.mode == "host":
        return
    usual = {*PUBLIC_INDEX, *_index_hosts({**os.environ, **variables})}
    allowed = AllowList(network.allow if network.mode == "egress" else ())
    for url, line in found.urls:
        if line not in missing and not line.startswith("-"):
            continue  # it is installed already
        try:
            host, port = host_and_port(url)
            if host not in usual:
                _check_host(allowed, host, port)
        except (ValueError, EgressRefused) as error:
            raise LoadError(
                f"requirements.txt: '{line[:200]}' cannot be installed: {error}",
                {"hint": "Add the host to deployConfig.network in config.json, or configure the index where aenv runs"},
            ) from None


def _check_host(allowed: AllowList, host: str, port: int) -> None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        allowed.check_name(host, port)
    else:
        allowed.check_address(address, port)


def _index_hosts(variables: Mapping[str, str]) -> set[str]:
    """Return the hosts of the package indexes that the caller has configured."""
    words = [word for setting in package_index(variables) for word in setting.partition("=")[2].split()]
    return {host for word in words if (host := urlsplit(word).hostname)}


def cache_folder() -> Path:
    """Return the folder of all layers."""
    return config.cache_folder() / "layers"


def cache(folder: Path | None = None) -> CacheFolder:
    """Return the cache of layers."""
    return CacheFolder("layers", folder or cache_folder(), "packages of requirements.txt")


async def layer(packages: PackageList, folder: Path, variables: Mapping[str, str] | None = None) -> Path:
    """Return a folder with these packages; install them if it does not exist.

    ``variables``: the caller's proxies, certificates and package index. Another index has another layer.

    Raises:
        LoadError: they cannot be installed.
        Unavailable: the package index cannot be reached.
    """
    python = f"{sys.implementation.cache_tag}-{os.uname().machine}"
    key = [python, *sorted(packages.lines), *map(" ".join, packages.options), *package_index(variables or {})]
    digest = hashlib.sha256("\n".join(key).encode()).hexdigest()[:32]
    layers = cache(folder)
    while (found := layers.use(digest)) is None:
        from aenv.engines import package_installer

        names = ", ".join(packages.shown)
        with waiting_for(f"the installation of {names}"), atomic_folder(folder / digest) as made:
            made.chmod(0o755)
            log.info("installing %s", names)
            await package_installer.install(packages.lines, packages.options, made, variables or {}, names)
    return found
