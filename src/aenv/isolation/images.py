"""Unpack a root file system: a tar of one, an OCI image layout, or what ``docker save`` writes.

A tar may come from anybody. Nothing in it is trusted: every path is resolved inside of the target, links included;
owners, devices and setuid bits are left out; a layer whose digest is not the promised one is refused. It is done in a
process of its own (``python -m aenv.isolation.images``), which has little memory to be tricked out of.
"""

from __future__ import annotations

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

from aenv.isolation.whole import made_whole

MOST_BYTES = 32 << 30
MOST_FILES = 4_000_000
MOST_LINKS = 40
A_DAY = 86400.0
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_JSON = 8 << 20


class BadImage(Exception):
    """It cannot be used; the message says why."""


@dataclass(frozen=True)
class Image:
    """Something that can be unpacked."""

    digest: str
    """Names the content: the same content has the same one."""
    layers: list[Callable[[], IO[bytes]]]
    """The lowest first."""
    variables: dict[str, str] = field(default_factory=dict)
    """What the image says that programs in it expect."""
    diff_ids: list[str] = field(default_factory=list)

    def unpack(self, target: Path) -> None:
        """Into a folder that is empty and that nobody else may enter.

        Raises:
            BadImage: it is broken, or tries to leave the folder.
        """
        budget = _Budget()
        for number, open_layer in enumerate(self.layers):
            promised = self.diff_ids[number] if self.diff_ids else None
            try:
                with open_layer() as source:
                    _Layer(target, budget).unpack(source, promised)
            except (tarfile.TarError, EOFError, OSError, ValueError) as error:
                raise BadImage(f"layer {number + 1} of {len(self.layers)} cannot be unpacked: {error}") from error


def open_image(path: Path, stack: ExitStack) -> Image:
    """What is at a path. The image can be used for as long as the stack is open.

    Raises:
        BadImage: that is no image.
    """
    if path.is_dir():
        if (path / "oci-layout").is_file():
            return _oci(_Folder(path))
        raise BadImage(f"{path} is neither an OCI image layout nor an unpacked root file system")
    try:
        archive = stack.enter_context(tarfile.open(path, "r:*"))  # noqa: SIM115 - the stack closes it
        first = archive.next()
        if first is None:
            raise BadImage(f"{path} is empty")
        names = _Archive(archive)
        if names.has("oci-layout") and names.has("index.json"):
            return _oci(names)
        if names.has("manifest.json"):
            return _docker(names)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise BadImage(f"{path} cannot be read as a tar: {error}") from error
    if is_root(names.names()):
        return Image(_digest_of(path), [lambda: path.open("rb")])
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
        return (self._path / name).open("rb")


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


def _json(place: _Folder | _Archive, name: str) -> Any:
    try:
        with place.open(name) as file:
            return json.loads(file.read(_MAX_JSON))
    except ValueError as error:
        raise BadImage(f"{name} is not JSON: {error}") from None
    except OSError as error:
        raise BadImage(f"the image has no {name}: {error.strerror}") from None


def _oci(place: _Folder | _Archive) -> Image:
    try:
        manifest = _json(place, "index.json")
        while "manifests" in manifest:
            manifest = _json(place, _blob(_for_this_machine(manifest["manifests"])))
        digest = manifest["config"]["digest"]
        config = _json(place, _blob(manifest["config"]))
        layers = [_blob(layer) for layer in manifest["layers"]]
        for layer in manifest["layers"]:
            if "zstd" in layer.get("mediaType", ""):
                raise BadImage("its layers are packed with zstd, which cannot be read here; save it with gzip")
        return _image(place, digest, config, layers)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise BadImage(f"its index makes no sense: {error!r}") from None


def _docker(place: _Archive) -> Image:
    try:
        manifest = _json(place, "manifest.json")[0]
        with place.open(manifest["Config"]) as file:
            raw = file.read(_MAX_JSON)
        digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
        return _image(place, digest, json.loads(raw), list(manifest["Layers"]))
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise BadImage(f"its manifest makes no sense: {error!r}") from None


def _image(place: _Folder | _Archive, digest: str, config: dict[str, Any], layers: list[str]) -> Image:
    diff_ids = config["rootfs"]["diff_ids"]
    if len(diff_ids) != len(layers) or not all(_DIGEST.fullmatch(each) for each in diff_ids):
        raise BadImage("its layers are not those that its config names")
    variables = dict(each.split("=", 1) for each in (config.get("config") or {}).get("Env") or [] if "=" in each)
    return Image(digest, [lambda name=name: place.open(name) for name in layers], variables, diff_ids)  # type: ignore[misc]


def _blob(descriptor: dict[str, Any]) -> str:
    digest = str(descriptor["digest"])
    if not _DIGEST.fullmatch(digest):
        raise BadImage(f"{digest!r} is not a digest")
    return digest.replace("sha256:", "blobs/sha256/")


def _for_this_machine(manifests: list[dict[str, Any]]) -> dict[str, Any]:
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

    def __init__(self) -> None:
        self._bytes, self._files = MOST_BYTES, MOST_FILES

    def spend(self, size: int) -> None:
        self._bytes -= size
        self._files -= 1
        if self._bytes < 0 or self._files < 0:
            raise ValueError(f"there is more in it than {MOST_BYTES >> 30} GiB or {MOST_FILES} files")


class _Layer:
    """One layer, put on top of what is in the target already."""

    def __init__(self, target: Path, budget: _Budget) -> None:
        self._target = str(target)
        self._budget = budget
        self._made: set[str] = set()
        self._modes: dict[str, tuple[int, float]] = {}

    def unpack(self, source: IO[bytes], promised: str | None) -> None:
        plain = _Hashed(_unpacked(source))
        with tarfile.open(fileobj=plain, mode="r|") as archive:
            for member in archive:
                self._budget.spend(member.size if member.isreg() else 0)
                self._put(archive, member)
        while plain.read(1 << 20):
            pass
        if promised is not None and plain.digest() != promised:
            raise ValueError("its content is not what the image promises")
        for path, (mode, changed) in sorted(self._modes.items(), reverse=True):
            if os.path.isdir(path) and not os.path.islink(path):
                os.chmod(path, mode)
                os.utime(path, (changed, changed))

    def _put(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        folder, name = os.path.split(os.path.normpath("/" + member.name))
        if not name:
            return  # the root itself
        place = inside(self._target, folder, make=True)
        path = os.path.join(place, name)
        if name == _OPAQUE:
            for each in os.listdir(place):
                self._remove(os.path.join(place, each))
        elif name.startswith(_WHITEOUT):
            self._remove(os.path.join(place, name.removeprefix(_WHITEOUT)))
        elif member.isdir():
            if not os.path.isdir(path) or os.path.islink(path):
                self._clear(path)
                os.mkdir(path, 0o700)
            self._modes[path] = (member.mode & 0o777 | 0o700, member.mtime)
            self._own(path)
        elif member.isreg() or member.issym() or member.islnk():
            self._clear(path)
            self._make(archive, member, path)
            self._own(path)
        # devices and pipes are left out: a sandbox has its own, and no others

    def _make(self, archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        if member.issym():
            os.symlink(member.linkname, path)
            return
        if member.islnk():
            folder, name = os.path.split(os.path.normpath("/" + member.linkname))
            linked = os.path.join(inside(self._target, folder), name)
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
        os.utime(path, (member.mtime, member.mtime))

    def _own(self, path: str) -> None:
        """Remember it, and the folders that it is in, as this layer's."""
        while path not in self._made and path != self._target:
            self._made.add(path)
            path = os.path.dirname(path)

    def _clear(self, path: str) -> None:
        """Make room for something of this layer; a folder gives way to a file, as it would in an overlay."""
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)

    def _remove(self, path: str) -> None:
        """What a lower layer had; what this one has is not meant."""
        if os.path.isdir(path) and not os.path.islink(path):
            if path not in self._made:
                shutil.rmtree(path)
                return
            for each in os.listdir(path):
                self._remove(os.path.join(path, each))
        elif path not in self._made and os.path.lexists(path):
            os.unlink(path)


def inside(root: str, path: str, *, make: bool = False) -> str:
    """Where an absolute path leads for who has ``root`` as root: links are followed, and never out of it.

    Raises:
        ValueError: links go round in circles, or a part of the path is no folder.
    """
    at, links = root, 0
    parts = path.split("/")[::-1]
    while parts:
        part = parts.pop()
        if part in ("", "."):
            continue
        if part == "..":
            at = at if at == root else os.path.dirname(at)
            continue
        below = os.path.join(at, part)
        try:
            mode = os.lstat(below).st_mode
        except FileNotFoundError:
            if not make:
                raise
            os.mkdir(below, 0o755)
            mode = stat.S_IFDIR
        if stat.S_ISLNK(mode):
            links += 1
            if links > MOST_LINKS:
                raise ValueError(f"{path}: links go round in circles")
            target = os.readlink(below)
            at = root if target.startswith("/") else at
            parts += target.split("/")[::-1]
        elif stat.S_ISDIR(mode):
            at = below
        else:
            raise ValueError(f"{path}: {part} is not a folder")
    return at


class _Hashed(io.RawIOBase):
    """Reads through, and knows the digest of what was read."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._hash = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        data = self._source.read(size)
        self._hash.update(data)
        return data

    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


def _unpacked(source: IO[bytes]) -> IO[bytes]:
    """The tar itself, whatever it is packed with."""
    import bz2
    import gzip
    import lzma

    start = source.read(6)
    source.seek(0)
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


def store(source: Path, folder: Path) -> Path:
    """Where an image's content is in this folder; unpacks it when nobody has before.

    Raises:
        BadImage: it cannot be.
    """
    with ExitStack() as stack:
        image = open_image(source, stack)
        target = folder / image.digest.replace(":", "-")
        if target.is_dir():
            return target
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        with made_whole(target) as made:
            (made / "root").mkdir()
            image.unpack(made / "root")
            (made / "root").chmod(0o755)
            (made / "image.json").write_text(json.dumps({"variables": image.variables}))
    return target


def _sweep(folder: Path) -> None:
    """What was being unpacked by somebody who was killed."""
    for left in folder.glob("sha256-*.*"):
        if left.stat().st_mtime < time.time() - A_DAY:
            shutil.rmtree(left, ignore_errors=True)


def main() -> None:
    """Arguments: what to unpack, and the folder of all that is unpacked. Says where it is, or why it is not."""
    most = 1 << 30
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    try:
        said = {"path": str(store(Path(sys.argv[1]), Path(sys.argv[2])))}
    except BadImage as error:
        said = {"error": str(error)}
    except OSError as error:
        said = {"error": f"{error.strerror}: {error.filename}"}
    except MemoryError:
        said = {"error": "it takes too much memory"}
    print(json.dumps(said))  # noqa: T201 - this is the module's output


if __name__ == "__main__":
    main()
