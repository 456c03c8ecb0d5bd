"""Unpack a root file system: a tar of one, an OCI image layout, or what ``docker save`` writes.

A tar may come from anybody. Nothing in it is trusted: every path is resolved inside of the target, links included;
owners, devices and setuid bits are left out. Every piece of an image (index, manifest, config, layer) must have the
digest and the size that the piece above it declares, before anything is stored under that digest. Reading is done in a
process of its own (``python -m aenv.images.oci_unpack``) with limits on memory, CPU time, files, bytes and depth.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import re
import resource
import shutil
import stat
import sys
import tarfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from aenv.isolation.files.atomic_folders import atomic_folder
from aenv.isolation.files.rooted_paths import resolve_in_root
from aenv.isolation.files.tar_limits import BoundedTarInfo, clamp_mtime

MOST_BYTES = 32 << 30
MOST_FILES = 4_000_000
MOST_INDEXES = 4
"""Image indexes that may point at each other before a manifest comes."""
MOST_CPU = 3600
"""Seconds of CPU time for one image: a small file can be made to unpack for days."""
MIN_FREE_BYTES = 1 << 30
"""Bytes that must be left on the disk."""
A_DAY = 86400.0
_WHITEOUT, _OPAQUE, _RESERVED = ".wh.", ".wh..wh..opq", ".wh..wh."
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_JSON = 8 << 20
_LAYER_TYPES = re.compile(r"application/vnd\.[a-z0-9.]+\.tar(?:[.+]gzip)?")


class BadImage(Exception):
    """It cannot be used; the message says why."""


@dataclass(frozen=True)
class Blob:
    """A layer of an image, as it is stored, and what is promised about it."""

    open: Callable[[], IO[bytes]]
    digest: str | None = None
    """Of the bytes as they are stored."""
    size: int | None = None
    diff_id: str | None = None
    """Digest of the tar itself, after decompression."""


@dataclass(frozen=True)
class OciImage:
    """Something that can be unpacked."""

    digest: str
    """Names the content: the same content has the same one."""
    layers: list[Blob]
    """The lowest first."""
    variables: dict[str, str] = field(default_factory=dict)
    """What the image says that programs in it expect."""

    def unpack(self, target: Path, limit: int | None = None) -> None:
        """Into a folder that is empty and that nobody else may enter; at most ``limit`` bytes of files.

        Raises:
            BadImage: it is broken, too large, or tries to leave the folder.
        """
        budget = _Budget(target, limit)
        for number, layer in enumerate(self.layers):
            try:
                _unpack_layer(layer, target, budget)
            except MemoryError:
                raise
            except Exception as error:  # broken bytes make tarfile and the decompressors raise errors of many kinds
                raise BadImage(f"layer {number + 1} of {len(self.layers)} cannot be unpacked: {error}") from error


def unpack_tree(source: IO[bytes], target: Path, below: str) -> None:
    """Unpack a plain tar, which may come from anybody, below a path in a folder: `OciImage.unpack` without whiteouts.

    A tar of one file that is called ``.`` becomes the file ``below``.

    Raises:
        BadImage: it is broken, or tries to leave the folder.
    """
    try:
        _Layer(target, _Budget(target), whiteouts=False, below=below).unpack(source)
    except MemoryError:
        raise
    except Exception as error:
        raise BadImage(str(error)) from error


def open_image(path: Path, stack: ExitStack) -> OciImage:
    """What is at a path. The image can be used for as long as the stack is open.

    Raises:
        BadImage: that is no image.
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
    """Whether these are in the root of a system."""
    tops = {name.removeprefix("./").strip("/").partition("/")[0] for name in names}
    return bool(tops & {"usr", "bin"}) and bool(tops & {"etc", "lib", "usr"})


# --- where the pieces of an image are


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
    """A tar as a folder; links in it are not followed but for those that point to a file of it."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._members = {member.name.removeprefix("./"): member for member in archive.getmembers()}

    def names(self) -> list[str]:
        return list(self._members)

    def has(self, name: str) -> bool:
        return name in self._members

    def open(self, name: str) -> IO[bytes]:
        member = self._members.get(name)
        if member is not None and member.issym():  # as older versions of docker save write layers that are the same
            name = os.path.normpath(os.path.join(os.path.dirname(name), member.linkname))
            member = self._members.get(name)
        source = self._archive.extractfile(member) if member is not None and member.isfile() else None
        if source is None:
            raise BadImage(f"the image has no {name}")
        return source


def _read(place: _Folder | _Archive, name: str) -> bytes:
    """A JSON document of the image."""
    try:
        with place.open(name) as file:
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


def _checked_json(place: _Folder | _Archive, descriptor: dict[str, Any]) -> Any:
    """The document that a descriptor names, if it has the digest and the size that the descriptor declares."""
    name = _blob_path(descriptor)
    raw = _read(place, name)
    if len(raw) != _size(descriptor) or f"sha256:{hashlib.sha256(raw).hexdigest()}" != descriptor["digest"]:
        raise BadImage(f"{name} does not have the content that its digest and size stand for")
    return _json(raw, name)


def _oci(place: _Folder | _Archive) -> OciImage:
    try:
        document = _json(_read(place, "index.json"), "index.json")
        for _ in range(MOST_INDEXES):
            if "manifests" not in document:
                break
            if "layers" in document:
                raise BadImage("a document in it is both an index and a manifest")
            document = _checked_json(place, _select_platform(document["manifests"]))
        else:
            raise BadImage(f"it has more than {MOST_INDEXES} indexes that point at each other")
        config = _checked_json(place, document["config"])
        layers = [_oci_layer(place, layer) for layer in document["layers"]]
        return _image(document["config"]["digest"], config, layers)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise BadImage(f"its index makes no sense: {error!r}") from None


def _oci_layer(place: _Folder | _Archive, descriptor: dict[str, Any]) -> Blob:
    kind = descriptor.get("mediaType")
    if kind is not None and "zstd" in kind:
        raise BadImage("its layers are packed with zstd, which cannot be read here; save it with gzip")
    if kind is not None and not _LAYER_TYPES.fullmatch(kind):
        raise BadImage(f"a layer has the media type {kind[:100]!r}, which is not a tar")
    name = _blob_path(descriptor)
    return Blob(lambda: place.open(name), descriptor["digest"], _size(descriptor))


def _docker(place: _Archive) -> OciImage:
    try:
        manifest = _json(_read(place, "manifest.json"), "manifest.json")[0]
        raw = _read(place, manifest["Config"])
        digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
        layers = [Blob(lambda name=name: place.open(name)) for name in manifest["Layers"]]  # type: ignore[misc]
        return _image(digest, _json(raw, "its config"), layers)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise BadImage(f"its manifest makes no sense: {error!r}") from None


def _image(digest: str, config: dict[str, Any], layers: list[Blob]) -> OciImage:
    diff_ids = config["rootfs"]["diff_ids"]
    if len(diff_ids) != len(layers) or not all(_DIGEST.fullmatch(each) for each in diff_ids):
        raise BadImage("its layers are not those that its config names")
    promised = [dataclasses.replace(layer, diff_id=each) for layer, each in zip(layers, diff_ids, strict=True)]
    return OciImage(digest, promised, _variables((config.get("config") or {}).get("Env") or []))


def _variables(listed: Any) -> dict[str, str]:
    if not isinstance(listed, list) or not all(isinstance(each, str) and "\0" not in each for each in listed):
        raise BadImage("the variables in its config are not a list of texts")
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
    known = [each for each in manifests if (each.get("platform") or {}).get("os", "linux") == "linux"]
    fitting = [each for each in known if (each.get("platform") or {}).get("architecture", wanted) == wanted]
    if not fitting:
        raise BadImage(f"it has nothing for linux/{wanted}")
    return fitting[0]


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


# --- unpacking


class _Budget:
    """How much may still be unpacked."""

    def __init__(self, target: Path, limit: int | None = None) -> None:
        self._limit = MOST_BYTES if limit is None else min(limit, MOST_BYTES)
        self._bytes = min(self._limit, max(shutil.disk_usage(target.parent).free - MIN_FREE_BYTES, 0))
        self._files = MOST_FILES

    def spend(self, size: int) -> None:
        self._bytes -= size
        self._files -= 1
        if self._bytes < 0 or self._files < 0:
            raise ValueError(
                f"there is more in it than {self._limit} bytes or {MOST_FILES} files, or than the disk has room for"
            )


def _unpack_layer(layer: Blob, target: Path, budget: _Budget) -> None:
    """Put a layer on what is in the target, and check what was promised about it."""
    with layer.open() as source:
        stored = _HashingReader(source)
        buffered = io.BufferedReader(stored, 1 << 16)
        plain = _HashingReader(_decompressed(buffered))
        _Layer(target, budget).unpack(plain)
        for rest in (plain, buffered):  # padding behind the end of a tar or of a compressed stream
            while rest.read(1 << 20):
                pass
        if layer.size not in (None, stored.size) or layer.digest not in (None, stored.digest()):
            raise ValueError("its stored bytes are not what the image promises")
        if layer.diff_id not in (None, plain.digest()):
            raise ValueError("its content is not what the image promises")


class _Layer:
    """One layer, put on top of what is in the target already."""

    def __init__(self, target: Path, budget: _Budget, *, whiteouts: bool = True, below: str = "") -> None:
        self._target = str(target)
        self._budget = budget
        self._whiteouts = whiteouts
        self._below = below
        self._made: set[str] = set()
        self._modes: dict[str, tuple[int, float]] = {}

    def unpack(self, source: IO[bytes] | _HashingReader) -> None:
        with tarfile.open(fileobj=source, mode="r|", tarinfo=BoundedTarInfo) as archive:
            while (member := archive.next()) is not None:
                self._budget.spend(member.size if member.isreg() else 0)
                self._extract(archive, member)
                archive.members.clear()  # type: ignore[attr-defined]  # it would remember all of them
        for path, (mode, changed) in sorted(self._modes.items(), reverse=True):
            if os.path.isdir(path) and not os.path.islink(path):
                os.chmod(path, mode)
                os.utime(path, (changed, changed))

    def _extract(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        folder, name = self._split(member.name)
        if not name:
            return  # the root itself
        place = resolve_in_root(self._target, folder, make=True)
        path = os.path.join(place, name)
        if self._whiteouts and name.startswith(_WHITEOUT):
            self._apply_whiteout(place, name)
        elif member.isdir():
            if not os.path.isdir(path) or os.path.islink(path):
                self._remove_existing(path)
                os.mkdir(path, 0o700)
            self._modes[path] = (member.mode & 0o777 | 0o700, clamp_mtime(member.mtime))
            self._mark_own(path)
        elif member.isreg() or member.issym() or member.islnk():
            self._remove_existing(path)
            self._make(archive, member, path)
            self._mark_own(path)
        # devices and pipes are left out: a sandbox has its own, and no others

    def _split(self, name: str) -> tuple[str, str]:
        """The folder and the name that a member has, from the target's root on."""
        return os.path.split(os.path.normpath(f"/{self._below}/{os.path.normpath('/' + name)}"))

    def _apply_whiteout(self, place: str, name: str) -> None:
        """Follow a whiteout: what lower layers have of this name, or all that they have in this folder, is gone."""
        hidden = name.removeprefix(_WHITEOUT)
        if name == _OPAQUE:
            for each in os.listdir(place):
                self._remove_lower(os.path.join(place, each))
        elif hidden in ("", ".", ".."):
            raise ValueError(f"the whiteout {name!r} does not name a file of its folder")
        elif not name.startswith(_RESERVED):  # others of these are notes of aufs about itself
            self._remove_lower(os.path.join(place, hidden))

    def _make(self, archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        if member.issym():
            os.symlink(member.linkname, path)
            return
        if member.islnk():
            folder, name = self._split(member.linkname)
            linked = os.path.join(resolve_in_root(self._target, folder), name)
            if not stat.S_ISREG(os.lstat(linked).st_mode):
                raise ValueError(f"{member.name} is a link to {member.linkname}, which is no file")
            os.link(linked, path, follow_symlinks=False)
            return
        content = archive.extractfile(member)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as file:
            if content is not None:
                shutil.copyfileobj(content, file, 1 << 20)
            os.fchmod(descriptor, member.mode & 0o777 | 0o400)
        os.utime(path, (clamp_mtime(member.mtime),) * 2)

    def _mark_own(self, path: str) -> None:
        """Remember it, and the folders that it is in, as this layer's."""
        while path not in self._made and path != self._target:
            self._made.add(path)
            path = os.path.dirname(path)

    def _remove_existing(self, path: str) -> None:
        """Make room for something of this layer; a folder gives way to a file, as it would in an overlay."""
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)

    def _remove_lower(self, path: str) -> None:
        """What a lower layer had; what this one has is not meant."""
        if os.path.isdir(path) and not os.path.islink(path):
            if path not in self._made:
                shutil.rmtree(path)
                return
            for each in os.listdir(path):
                self._remove_lower(os.path.join(path, each))
        elif path not in self._made and os.path.lexists(path):
            os.unlink(path)


class _HashingReader(io.RawIOBase):
    """Reads through, and knows the digest and the length of what was read."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._hash = hashlib.sha256()
        self.size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1, /) -> bytes:
        data = self._source.read(size)
        self._hash.update(data)
        self.size += len(data)
        if self.size > MOST_BYTES + MOST_FILES * 1024:  # a member has a head of one or more blocks
            raise ValueError("there is more in it than could ever be unpacked")
        return data

    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


def _decompressed(source: io.BufferedReader[_HashingReader]) -> IO[bytes]:
    """The tar itself, whatever it is packed with."""
    import bz2
    import gzip
    import lzma

    start = source.peek(6)
    if start.startswith(b"\x1f\x8b"):
        return gzip.open(source)  # type: ignore[return-value]
    if start.startswith(b"BZh"):
        return bz2.open(source)
    if start.startswith(b"\xfd7zXZ"):
        return lzma.open(source)
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        raise ValueError("it is packed with zstd, which cannot be read here; save it with gzip")
    return source


# --- the store


def store(source: Path, folder: Path, limit: int | None = None) -> Path:
    """Where an image's content is in this folder; unpacks it when nobody has before, if it has at most ``limit`` bytes.

    Raises:
        BadImage: it cannot be.
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
    """What was being unpacked by somebody who was killed."""
    for left in folder.glob("sha256-*.*"):
        if left.stat().st_mtime < time.time() - A_DAY:
            shutil.rmtree(left, ignore_errors=True)


def main() -> None:
    """Arguments: what to unpack, the folder of all that is unpacked, and the most bytes that it may have, if there is
    such a limit. Says where it is, or why it is not.
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
        result = {"error": "it takes too much memory"}
    print(json.dumps(result))  # noqa: T201 - this is the module's output


if __name__ == "__main__":
    main()
