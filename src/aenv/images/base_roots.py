"""Base image of a Dockerfile's FROM: a Debian bootstrapped once from its packages, with Python if requested.

Nothing is fetched from a registry: the official images of debian, ubuntu and python are a small Debian, which any
mirror of Debian provides. Ubuntu is replaced by the Debian release of its time. An image that has been named with
``aenv base add`` is used as it is, so users who have the real image can use that.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path

from aenv.errors import BuildFailed
from aenv.images import base_systems, container, docker_cli, layered_images
from aenv.images.box_files import add_tree
from aenv.images.layered_images import BoxImage, digest
from aenv.images.uv_program import uv_program
from aenv.subprocesses import run_async
from aenv.tracing.logging import getLogger

log = getLogger("boxes")

HOST = "aenv/host"
"""FROM name of the host's own system."""
MIRROR = "http://deb.debian.org"
RELEASES = {"11": "bullseye", "12": "bookworm", "13": "trixie", "stable": "trixie", "latest": "trixie"}
PYTHONS = {"bullseye": "3.9", "bookworm": "3.11", "trixie": "3.13"}
"""Python version that each release packages."""
STAND_INS = {"20.04": "bullseye", "focal": "bullseye", "22.04": "bookworm", "jammy": "bookworm", "24.04": "bookworm",
             "noble": "bookworm", "latest": "bookworm"}  # fmt: skip
LIBRARIES = (
    "ca-certificates", "libbz2-1.0", "libexpat1", "libffi8", "liblzma5", "libncursesw6", "libreadline8",
    "libsqlite3-0", "libssl3", "libuuid1", "netbase", "tzdata", "zlib1g",
)  # fmt: skip
"""Packages installed in every root: libraries that a Python built elsewhere is linked with."""
FULL_PACKAGES = ("build-essential", "curl", "git", "pkg-config", "procps", "wget", "xz-utils")
"""Commonly used packages of the python images that are not slim."""
_OFFICIAL = re.compile(
    r"(?:docker\.io/)?(?:library/)?(?P<name>debian|ubuntu|python)(?::(?P<tag>[\w.-]+))?(?:@sha256:.+)?"
)
_VERSION = re.compile(r"3\.\d+")


@dataclass(frozen=True, slots=True)
class OfficialImage:
    """Debian release and Python version of an official image."""

    release: str
    python: str | None = None
    full: bool = False


def parse_official_name(name: str) -> OfficialImage | None:
    """Parse the name of an official debian, ubuntu or python image; None for other images."""
    found = _OFFICIAL.fullmatch(name)
    if found is None:
        return None
    tag = found["tag"] or "latest"
    words = tag.split("-")
    if found["name"] == "ubuntu":
        return OfficialImage(next((STAND_INS[word] for word in words if word in STAND_INS), "bookworm"))
    release = next((word for word in words if word in PYTHONS), None)
    if found["name"] == "debian":
        return OfficialImage(release or RELEASES.get(words[0].partition(".")[0], "bookworm"))
    version = _VERSION.match(words[0])
    if "alpine" in tag or "windows" in tag:
        return None
    return OfficialImage(release or "bookworm", version[0] if version else "3.13", full="slim" not in words)


def base_name(image: str) -> str:
    """Return the name of an image among this machine's bases (``aenv base``)."""
    return re.sub(r"[^a-z0-9._-]+", "-", image.lower())


async def base_image(name: str) -> BoxImage:
    """Return the image that a FROM names, bootstrapping it if necessary.

    Raises:
        BuildFailed: the image cannot be bootstrapped, and Docker cannot provide it.
    """
    if name == "scratch":
        raise BuildFailed("FROM scratch: an empty image has no program to run")
    if name == HOST:
        return layered_images.host_image()
    alias = base_name(name)
    if alias in base_systems.names():
        base = await base_systems.BaseSystems().find(alias, Path("/"))
        path = str(base.root)
        return BoxImage(digest("base", path), (path,), (path,), variables=base.variables)
    origin = parse_official_name(name)
    if origin is None:
        return await _from_docker(name, alias)
    image = await _debian(origin.release)
    if origin.full:
        image = await _with_packages(image, FULL_PACKAGES)
    return await _with_python(image, origin) if origin.python else image


async def _from_docker(name: str, alias: str) -> BoxImage:
    """Get an image that cannot be bootstrapped from Docker, where installed."""
    engine = await docker_cli.find()
    found = None if isinstance(engine, str) else await engine.image(name)
    if found is None:
        why = engine if isinstance(engine, str) else f"{Path(engine.program).name} cannot get it, either"
        raise BuildFailed(
            f"FROM {name}: only debian, ubuntu and python images can be built without Docker, and {why}",
            {
                "hint": f"Copy the image: on a machine with Docker, docker save {name} -o image.tar; here, "
                f"aenv base add {alias} image.tar"
            },
        )
    return found


def bootstrap_problem() -> str | None:
    """Return None if a Debian can be bootstrapped here, else what is missing."""
    if shutil.which("mmdebstrap") is None:
        return "mmdebstrap is not installed; install it with: sudo apt-get install mmdebstrap debian-archive-keyring"
    if not Path("/usr/share/keyrings/debian-archive-keyring.gpg").exists():
        return "the Debian keyring is not installed; install it with: sudo apt-get install debian-archive-keyring"
    if not container.has_user_range():
        return docker_cli.NO_USERS
    return None


async def _debian(release: str) -> BoxImage:
    """Return a minimal Debian, bootstrapped on first use."""
    mirror = os.environ.get("AENV_DEBIAN_MIRROR", MIRROR).rstrip("/")
    security = f"{release}-security"
    suites = [
        f"{mirror}/debian {release}",
        f"{mirror}/debian {release}-updates",
        f"{mirror}/debian-security {security}",
    ]
    key = digest("debian", release, LIBRARIES, suites)

    async def make(state: Path) -> None:
        missing = bootstrap_problem()
        if missing is not None:
            raise BuildFailed(f"Debian cannot be bootstrapped here: {missing}")
        log.warning("bootstrapping Debian (%s) from its packages, once; this takes a minute or two", release)
        libraries = [name for name in LIBRARIES if release != "bullseye" or name not in ("libffi8", "libssl3")]
        command = ["mmdebstrap", "--mode=root", "--variant=minbase", "--keyring=/usr/share/keyrings"]
        command += [f"--include={','.join(libraries)}", release, "/made", *(f"deb {suite} main" for suite in suites)]
        scratch = layered_images.new_state(state / "scratch")
        async with layered_images.box(layered_images.host_image(), scratch, network="host") as box:
            done = await box.exec(command, merge_stderr=True)
        if done.code:
            raise BuildFailed(f"mmdebstrap failed:\n{done.output[-2000:]}")
        (state / "upper").rmdir()
        (scratch / "upper" / "made").rename(state / "upper")
        await layered_images.remove(scratch)

    upper = await layered_images.ensure_layer(key, make)
    return BoxImage(key, (str(upper),))


async def _with_packages(image: BoxImage, packages: tuple[str, ...]) -> BoxImage:
    key = digest(image.key, "packages", packages)

    async def make(state: Path) -> None:
        async with layered_images.box(image, state, network="host") as box:
            line = f"apt-get update && apt-get install -y --no-install-recommends {' '.join(packages)}"
            done = await box.exec(f"{line} && rm -rf /var/lib/apt/lists/*", merge_stderr=True)
        if done.code:
            raise BuildFailed(f"{', '.join(packages)} cannot be installed:\n{done.output[-2000:]}")

    return image.with_layer(key, await layered_images.ensure_layer(key, make))


async def _with_python(image: BoxImage, origin: OfficialImage) -> BoxImage:
    """Return the image with a Python in /usr/local, like the official python images."""
    assert origin.python is not None
    found = await host_python(origin.python)
    if found is None and PYTHONS[origin.release] != origin.python:
        raise BuildFailed(
            f"no Python {origin.python} on this machine to install in the image",
            {"hint": f"Install it: uv python install {origin.python}"},
        )
    key = digest(image.key, "python", origin.python, found)

    async def make(state: Path) -> None:
        async with layered_images.box(image, state, network="host") as box:
            if found is None:
                line = "apt-get update && apt-get install -y --no-install-recommends python3 python3-pip python3-venv"
                link = "rm -f /usr/lib/python3*/EXTERNALLY-MANAGED && ln -s /usr/bin/python3 /usr/local/bin/python"
                done = await box.exec(f"{line} && {link}", merge_stderr=True)
            else:
                await box.unpack(lambda target: _pack_python(found, target), "/usr/local")
                version = f"python{origin.python}"
                done = await box.exec(
                    f"cd /usr/local/bin && ldconfig && ln -sf {version} python3 && ln -sf python3 python && "
                    "python3 -m ensurepip && ln -sf pip3 pip",
                    merge_stderr=True,
                )
        if done.code:
            raise BuildFailed(f"Python {origin.python} cannot be installed in the image:\n{done.output[-2000:]}")

    layered = image.with_layer(key, await layered_images.ensure_layer(key, make))
    return replace(layered, variables={**image.variables, "LANG": "C.UTF-8"}, command=("python3",))


def _pack_python(source: Path, target: object) -> None:
    """Write the tar of a Python installation, without packages and tests."""
    left_out = re.compile(r"\./(lib/python3\.\d+/(site-packages/.+|test(/.*)?)|bin/(?!python3\.\d+$).+)|.*__pycache__")
    with tarfile.open(fileobj=target, mode="w|") as archive:  # type: ignore[call-overload]
        add_tree(archive, source, ".", leave_out=lambda name: bool(left_out.fullmatch(f"./{name}")))


async def host_python(version: str) -> Path | None:
    """Return the folder of a Python of this version that this user has, or that uv can install; else None."""
    uv_folder = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or "~/.local/share/uv/python").expanduser()
    pyenv = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser()
    own = layered_images.folder() / "pythons"
    candidates = [
        (uv_folder, f"cpython-{version}.*"),
        (pyenv / "versions", f"{version}.*"),
        (own, f"cpython-{version}.*"),
    ]
    for folder, pattern in candidates:
        for found in sorted(folder.glob(pattern), reverse=True):
            if (found / "bin" / f"python{version}").exists():
                return found.resolve()
    uv = uv_program()
    if uv is None:
        return None
    await run_async([str(uv), "python", "install", "--no-bin", "--install-dir", str(own), version], cwd="/")
    return next((found.resolve() for found in sorted(own.glob(f"cpython-{version}.*"), reverse=True)), None)
