"""Unpack a root file system from a tar, an OCI image layout or a ``docker save`` file.

Images are untrusted. Every part of an image (index, manifest, config, layer) must have the digest and the size that
its parent declares, before anything is stored under that digest. `aenv.images.oci_layers` unpacks the layers, in a
separate process (``python -m aenv.images.oci_unpack``) with limits on memory, CPU time, files, bytes and depth.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import resource
import shutil
import stat
import sys
import tarfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from aenv.images.oci_layers import BadImage, Blob, UnpackBudget, unpack_layer
from aenv.isolation.files.atomic_folders import atomic_folder
from aenv.isolation.files.tar_limits import BoundedTarInfo

MOST_INDEXES = 4
"""Nested image indexes before a manifest."""
MOST_CPU = 3600
"""Seconds of CPU time for one image: a small file can be made to unpack for days."""
A_DAY = 86400.0
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_JSON = 8 << 20
_LAYER_TYPES = re.compile(r"application/vnd\.[a-z0-9.]+\.tar(?:[.+]gzip)?")


@dataclass(frozen=True)
class OciImage:
    """Opened image that can be unpacked."""

    digest: str
    """Digest of the content."""
    layers: list[Blob]
    """Layers, lowest first."""
    variables: dict[str, str] = field(default_factory=dict)
    """Environment variables from the image's config."""

    def unpack(self, target: Path, limit: int | None = None) -> None:
        """Unpack into an empty folder that other users cannot enter, at most ``limit`` bytes of files.

        Raises:
            BadImage: the image is corrupt, too large, or has a path outside of the folder.
        """
        budget = UnpackBudget(target, limit)
        for number, layer in enumerate(self.layers):
            try:
                unpack_layer(layer, target, budget)
            except MemoryError:
                raise
            except Exception as error:  # corrupt bytes make tarfile and the decompressors raise many kinds of errors
                raise BadImage(f"layer {number + 1} of {len(self.layers)} cannot be unpacked: {error}") from error


def open_image(path: Path, stack: ExitStack) -> OciImage:
    """Open the image at a path. It can be used until the stack is closed.

    Raises:
        BadImage: there is no image at the path.
    """
    if path.is_dir():
        if (path / "oci-layout").is_file():
            return _oci(_Folder(path))
        raise BadImage(f"{path} is neither an OCI image layout nor an unpacked root file system")
    try:
        archive = stack.enter_context(tarfile.open(path, "r:*", tarinfo=BoundedTarInfo))  # noqa: SIM115 - the stack closes it
        first = archive.next()
        if first is None:
            raise BadImage(f"{path} is empty")
        names = _Archive(archive)
        if names.has("oci-layout") and names.has("index.json"):
            return _oci(names)
        if names.has("manifest.json"):
            return _docker(names)
    except (BadImage, MemoryError):
        raise
    except Exception as error:
        raise BadImage(f"{path} cannot be read as a tar: {error}") from error
    if is_root(names.names()):
        digest = _digest_of(path)
        return OciImage(digest, [Blob(lambda: path.open("rb"), digest)])
    raise BadImage(f"{path} holds no image: no index.json, no manifest.json, and no folders of a root file system")


def is_root(names: Iterable[str]) -> bool:
    """Return True if these names look like the content of a root file system."""
    tops = {name.removeprefix("./").strip("/").partition("/")[0] for name in names}
    return bool(tops & {"usr", "bin"}) and bool(tops & {"etc", "lib", "usr"})


# --- sources of an image's parts


class _Folder:
    def __init__(self, path: Path) -> None:
        self._path = path

    def has(self, name: str) -> bool:
        return (self._path / name).is_file()

    def open(self, name: str) -> IO[bytes]:
        descriptor = os.open(self._path / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # never wait for a pipe
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise BadImage(f"{name} is not a regular file")
        return open(descriptor, "rb")


class _Archive:
    """Access to a tar's members by name; symbolic links are followed only to other members."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._members = {member.name.removeprefix("./"): member for member in archive.getmembers()}

    def names(self) -> list[str]:
        return list(self._members)

    def has(self, name: str) -> bool:
        return name in self._members

    def open(self, name: str) -> IO[bytes]:
        member = self._members.get(name)
        if member is not None and member.issym():  # older versions of docker save write duplicate layers as links
            name = os.path.normpath(os.path.join(os.path.dirname(name), member.linkname))
            member = self._members.get(name)
        source = self._archive.extractfile(member) if member is not None and member.isfile() else None
        if source is None:
            raise BadImage(f"the image has no {name}")
        return source


def _read(source: _Folder | _Archive, name: str) -> bytes:
    """Read a JSON document of the image, up to `_MAX_JSON` bytes."""
    try:
        with source.open(name) as file:
            raw = file.read(_MAX_JSON + 1)
    except OSError as error:
        raise BadImage(f"the image has no {name}: {error.strerror}") from None
    if len(raw) > _MAX_JSON:
        raise BadImage(f"{name} is larger than {_MAX_JSON} bytes")
    return raw


def _json(raw: bytes, name: str) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadImage(f"{name} is not JSON: {error}") from None


def _checked_json(source: _Folder | _Archive, descriptor: dict[str, Any]) -> Any:
    """Read the document of a descriptor and check its declared digest and size."""
    name = _blob_path(descriptor)
    raw = _read(source, name)
    if len(raw) != _size(descriptor) or f"sha256:{hashlib.sha256(raw).hexdigest()}" != descriptor["digest"]:
        raise BadImage(f"{name} does not match its declared digest and size")
    return _json(raw, name)


def _oci(source: _Folder | _Archive) -> OciImage:
    try:
        document = _json(_read(source, "index.json"), "index.json")
        for _ in range(MOST_INDEXES):
            if "manifests" not in document:
                break
            if "layers" in document:
                raise BadImage("a document of the image is both an index and a manifest")
            document = _checked_json(source, _select_platform(document["manifests"]))
        else:
            raise BadImage(f"the image has more than {MOST_INDEXES} nested indexes")
        config = _checked_json(source, document["config"])
        layers = [_oci_layer(source, layer) for layer in document["layers"]]
        return _image(document["config"]["digest"], config, layers)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise BadImage(f"invalid image index: {error!r}") from None


def _oci_layer(source: _Folder | _Archive, descriptor: dict[str, Any]) -> Blob:
    kind = descriptor.get("mediaType")
    if kind is not None and "zstd" in kind:
        raise BadImage("layers compressed with zstd are not supported; save the image with gzip")
    if kind is not None and not _LAYER_TYPES.fullmatch(kind):
        raise BadImage(f"a layer has the media type {kind[:100]!r}, which is not a tar")
    name = _blob_path(descriptor)
    return Blob(lambda: source.open(name), descriptor["digest"], _size(descriptor))


def _docker(source: _Archive) -> OciImage:
    try:
        manifest = _json(_read(source, "manifest.json"), "manifest.json")[0]
        raw = _read(source, manifest["Config"])
        digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
        layers = [Blob(lambda name=name: source.open(name)) for name in manifest["Layers"]]  # type: ignore[misc]
        return _image(digest, _json(raw, "its config"), layers)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise BadImage(f"invalid image manifest: {error!r}") from None


def _image(digest: str, config: dict[str, Any], layers: list[Blob]) -> OciImage:
    diff_ids = config["rootfs"]["diff_ids"]
    if len(diff_ids) != len(layers) or not all(_DIGEST.fullmatch(each) for each in diff_ids):
        raise BadImage("the layers do not match the diff_ids of the image's config")
    promised = [dataclasses.replace(layer, diff_id=each) for layer, each in zip(layers, diff_ids, strict=True)]
    return OciImage(digest, promised, _variables((config.get("config") or {}).get("Env") or []))


def _variables(listed: Any) -> dict[str, str]:
    if not isinstance(listed, list) or not all(isinstance(each, str) and "\0" not in each for each in listed):
        raise BadImage("the variables in the image's config are not a list of strings")
    return dict(each.split("=", 1) for each in listed if "=" in each[1:])


def _blob_path(descriptor: dict[str, Any]) -> str:
    digest = str(descriptor["digest"])
    if not _DIGEST.fullmatch(digest):
        raise BadImage(f"{digest[:100]!r} is not a digest")
    return digest.replace("sha256:", "blobs/sha256/")


def _size(descriptor: dict[str, Any]) -> int:
    size = descriptor["size"]
    if type(size) is not int or size < 0:
        raise BadImage(f"{str(size)[:100]!r} is not a size")
    return size


def _select_platform(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    wanted = _MACHINES.get(os.uname().machine, os.uname().machine)
    for_linux = [each for each in manifests if (each.get("platform") or {}).get("os", "linux") == "linux"]
    fitting = [each for each in for_linux if (each.get("platform") or {}).get("architecture", wanted) == wanted]
    if not fitting:
        raise BadImage(f"the image has no manifest for linux/{wanted}")
    return fitting[0]


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


# --- store


def store(source: Path, folder: Path, limit: int | None = None) -> Path:
    """Return the folder of an image's unpacked content, unpacking it on first use, at most ``limit`` bytes.

    Raises:
        BadImage: the image cannot be unpacked.
    """
    with ExitStack() as stack:
        image = open_image(source, stack)
        target = folder / image.digest.replace(":", "-")
        if target.is_dir():
            return target
        folder.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder)
        with atomic_folder(target) as made:
            (made / "root").mkdir()
            image.unpack(made / "root", limit)
            (made / "root").chmod(0o755)
            (made / "image.json").write_text(json.dumps({"variables": image.variables}))
    return target


def _remove_abandoned(folder: Path) -> None:
    """Remove unfinished folders of killed processes, after a day."""
    for path in folder.glob("sha256-*.*"):
        if path.stat().st_mtime < time.time() - A_DAY:
            shutil.rmtree(path, ignore_errors=True)


def main() -> None:
    """Unpack an image: arguments are the image, the store folder and optionally the limit in bytes.

    Prints a JSON object with the ``path`` of the content, or the ``error``.
    """
    most = 1 << 30
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU, MOST_CPU))
    try:
        limit = int(sys.argv[3]) if len(sys.argv) > 3 else None
        result = {"path": str(store(Path(sys.argv[1]), Path(sys.argv[2]), limit))}
    except BadImage as error:
        result = {"error": str(error)}
    except OSError as error:
        result = {"error": f"{error.strerror}: {error.filename}"}
    except MemoryError:
        result = {"error": "unpacking takes too much memory"}
    print(json.dumps(result))  # noqa: T201 - this is the module's output


if __name__ == "__main__":
    main()
