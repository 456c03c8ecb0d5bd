"""Images of boxes: overlay layers, each built once and keyed by a digest of its inputs."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from aenv import config
from aenv.errors import Unavailable
from aenv.images import container
from aenv.images.box import Box
from aenv.images.container import ContainerSpec
from aenv.images.oci_unpack import A_DAY
from aenv.isolation.files import rootfs
from aenv.isolation.files.overlay_listing import is_opaque
from aenv.isolation.limits.cgroups import Cgroup
from aenv.isolation.network.policy import Mode
from aenv.storage.cache_folders import CacheFolder
from aenv.subprocesses import run_async

__all__ = ["Box", "BoxImage", "box", "digest", "host_image", "is_opaque", "ensure_layer", "new_state", "remove"]
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_CERTIFICATE_VARIABLES = (
    "SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS",
)  # fmt: skip
"""Variables that name a CA bundle: a host network with its own CA needs it in boxes, too."""
_CERTIFICATES_INSIDE = f"{container.AENV_FOLDER}/certificates.pem"


_HOST_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
LOCK_POLL_SECONDS = 0.2
"""Seconds between attempts to lock a layer that another process is building."""


def folder() -> Path:
    """Return the folder of layers, in the cache folder."""
    return config.cache_folder() / "boxes"


def cache() -> CacheFolder:
    """Return the cache of layers."""
    return CacheFolder(
        "boxes",
        folder() / "layers",
        "layers of images, built from Dockerfiles",
        remover=lambda path: asyncio.run(remove(path)),
        ignored=("unfinished",),
    )


@dataclass(frozen=True, slots=True)
class BoxImage:
    """Layers and settings of a box."""

    key: str
    """Digest of the content."""
    layers: tuple[str, ...]
    """Folders, lowest first."""
    host_owned: tuple[str, ...] = ()
    """Layers whose files are owned by host users."""
    shown: dict[str, str] = field(default_factory=dict)
    """Host folders to mount read-only, by path inside."""
    variables: dict[str, str] = field(default_factory=dict)
    cwd: str = "/"
    user: str = ""
    shell: tuple[str, ...] = ("/bin/sh", "-c")
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    """Default arguments of the entry point (CMD)."""

    def with_layer(self, key: str, layer: Path) -> BoxImage:
        """Return the image with a layer on top."""
        return replace(self, key=key, layers=(*self.layers, str(layer)))


def digest(*parts: object) -> str:
    """Return a key for a layer with these inputs."""
    return hashlib.sha256(json.dumps([str(part) for part in parts]).encode()).hexdigest()[:32]


def host_image() -> BoxImage:
    """Return an image of the host's own programs, read-only, without its other files."""
    shown = {path: path for path in (*_SYSTEM, *rootfs.ETC) if os.path.exists(path) and not os.path.islink(path)}
    links = {path: os.readlink(path) for path in (*_SYSTEM, *rootfs.ETC) if os.path.islink(path)}
    key = digest("host", sorted(shown), sorted(links.items()), _HOST_FILES)
    layers = cache()
    layer = layers.folder / key
    if layers.use(key) is None:
        fresh = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=layer_folder("unfinished")))
        for name in ("etc", "root", "tmp", "home", "var/tmp"):
            (fresh / "upper" / name).mkdir(parents=True)
        for name, text in _HOST_FILES.items():
            (fresh / "upper" / name).write_text(text)
        for path, target in links.items():
            link = fresh / "upper" / path[1:]
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)
        for top, folders, names in os.walk(fresh):
            for name in (top, *(os.path.join(top, each) for each in (*folders, *names))):
                os.lchown(name, *container.root_owner())
                if not os.path.islink(name):
                    os.chmod(name, 0o755 if os.path.isdir(name) else 0o644)
        with contextlib.suppress(OSError):  # another process may have been faster
            fresh.rename(layer)
        shutil.rmtree(fresh, ignore_errors=True)
        layers.use(key)
    return BoxImage(key, (str(layer / "upper"),), tuple(shown.values()), shown)


def layer_folder(key: str) -> Path:
    """Return the folder of one layer, creating it if missing."""
    made = folder() / "layers" / key
    made.mkdir(parents=True, exist_ok=True)
    return made


@asynccontextmanager
async def locked(key: str) -> AsyncIterator[None]:
    """Hold the lock of a layer, so that no other task or process builds it at the same time."""
    with (layer_folder("unfinished") / f"{key}.lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(LOCK_POLL_SECONDS)
        yield


def new_state(state: Path) -> Path:
    """Create a state folder, which receives the file changes of a box."""
    for name in ("", "upper", "work"):
        path = state / name
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o755)
        with contextlib.suppress(PermissionError):
            os.chown(path, *container.root_owner())
    return state


@asynccontextmanager
async def box(
    image: BoxImage,
    state: Path,
    *,
    network: Mode = "loopback",
    channel: int | None = None,
    shown: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
    group: Cgroup | None = None,
    extra_layers: tuple[str, ...] = (),
    network_of: Box | None = None,
) -> AsyncIterator[Box]:
    """Run a box of an image. ``extra_layers``: further layers on top, from state folders of earlier boxes."""
    host_mounts, host_variables = host_network_settings(network)
    all_shown = {**image.shown, **host_mounts, **(shown or {})}
    host_owned = (*image.host_owned, *host_mounts.values(), *(shown or {}).values())
    spec = ContainerSpec(
        "", [*image.layers, *extra_layers], str(state), host_owned=list(host_owned), shown=all_shown, network=network,
        files={**name_lookup_files(network), **(files or {})},
    )  # fmt: skip
    made = Box(spec, variables={**host_variables, **image.variables, **(variables or {})}, group=group)
    await made.start(channel, network_of)
    try:
        yield made
    finally:
        await made.stop()


def name_lookup_files(network: Mode) -> dict[str, str]:
    """Return /etc/hosts and /etc/resolv.conf for a network mode."""
    if network == "host":
        return rootfs.host_name_files()
    return {"/etc/hosts": "127.0.0.1 localhost box\n::1 localhost\n", "/etc/resolv.conf": ""}


def host_network_settings(network: Mode) -> tuple[dict[str, str], dict[str, str]]:
    """Return mounts and variables of a box with a network: the host's own CA bundle, if any, and its proxies."""
    shown: dict[str, str] = {}
    variables: dict[str, str] = {}
    if network in ("none", "loopback"):
        return shown, variables
    for name in _CERTIFICATE_VARIABLES:
        path = os.environ.get(name, "")
        if os.path.isfile(path):
            shown.setdefault(_CERTIFICATES_INSIDE, path)
            variables[name] = _CERTIFICATES_INSIDE
    if network == "host":
        for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
            if os.environ.get(name):
                variables[name] = os.environ[name]
    return shown, variables


async def ensure_layer(key: str, make: Callable[[Path], Awaitable[None]]) -> Path:
    """Return a layer's folder; if it is missing, ``make(state)`` builds it, and it is kept if that succeeds."""
    layers = cache()
    while (layer := layers.use(key)) is None:
        async with locked(key):
            if layers.use(key) is None:
                await _make(layers.folder / key, make)
    return layer / "upper"


async def _make(layer: Path, make: Callable[[Path], Awaitable[None]]) -> None:
    key = layer.name
    await _remove_abandoned()
    fresh = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=layer_folder("unfinished")))
    try:
        new_state(fresh)
        await make(fresh)
        await remove(fresh / "work")
        (fresh / "done").touch()
        fresh.rename(layer)
    finally:
        if fresh.exists():
            await remove(fresh)


async def _remove_abandoned() -> None:
    """Remove unfinished layers of killed builds, after a day."""
    for path in layer_folder("unfinished").iterdir():
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - A_DAY:
                await remove(path) if path.is_dir() else path.unlink()


async def remove(state: Path) -> None:
    """Remove a state folder, including files of the box's other users."""
    if os.geteuid() == 0:
        shutil.rmtree(state, ignore_errors=True)
    else:
        await _run_as_root("remove", str(state))


@dataclass(frozen=True, slots=True)
class LayerEntry:
    """Entry of a layer."""

    path: str
    """Path relative to the layer's folder."""
    kind: Literal["folder", "opaque", "whiteout", "file", "link", "other"]
    """``opaque``: a folder that hides that of lower layers; ``whiteout``: a removed entry of lower layers."""
    text: str = ""
    """Target of a link, or content in hexadecimal of files named by `overlay_listing.READ`."""


async def entries(layer: Path) -> AsyncIterator[LayerEntry]:
    """Yield all entries of a layer that a box has written, including those of the box's other users.

    Raises:
        Unavailable: the layer cannot be read.
    """
    command = [sys.executable, "-P", "-m", "aenv.images.container", "list", str(layer)]
    process = await asyncio.create_subprocess_exec(*command, cwd="/", stdout=asyncio.subprocess.PIPE, limit=1 << 24)
    assert process.stdout is not None
    async for line in process.stdout:
        yield LayerEntry(*json.loads(line))
    if await process.wait():
        raise Unavailable(f"{layer} cannot be read")


async def copy(state: Path, target: Path) -> None:
    """Copy a state folder as it is now.

    Raises:
        Unavailable: it cannot be copied.
    """
    if await _run_as_root("copy", str(state), str(target)):
        raise Unavailable(f"{state} cannot be copied to {target}")


async def _run_as_root(*words: str) -> int:
    """Remove or copy a tree as the root of containers; the host's root runs cp directly. Return the exit code."""
    command = ["cp", "-a", "--reflink=auto", *words[1:]] if os.geteuid() == 0 else (
        [sys.executable, "-P", "-m", "aenv.images.container", *words])  # fmt: skip
    return (await run_async(command, cwd="/", stderr=None)).code
