"""Targets: the readers of images, bundles, folders on the wire, Dockerfiles and config.json.

Each takes what hypothesis draws, and fails when a reader raises what it does not document, writes outside of its
folder, or leaves a link that leads out of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import io
import json
import os
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from aenv.errors import ConfigError, EnvironmentError, InvalidBundle, UsageError
from aenv.images import dockerfile, oci_layers, oci_unpack
from aenv.isolation.files import tar_streams
from aenv.project import manifest
from aenv.project.bundles import archive, packing
from aenv.project.bundles.unpack import unpack as unpack_bundle
from aenv.schema.bundle import parse

Target = Callable[[st.DataObject], None]

NAMES = (
    "a", "b", "a/b", "a/b/c", "usr", "usr/bin", "etc", "..", ".", "../out", "a/../../out", "/abs", "./a", "a//b", "a/",
    ".wh.a", ".wh..", ".wh...", ".wh.", ".wh..wh..opq", ".wh..wh.plnk", "a/.wh...", "oci-layout", "index.json",
    "manifest.json", "x" * 300, "d/" * 300 + "x", "\udc80",
)  # fmt: skip
LINKS = (
    "a",
    ".",
    "..",
    "../..",
    "a/..",
    "/",
    "/etc/passwd",
    "a/../../out",
    "b/c/../../..",
    "",
    "../precious",
    "x" * 5000,
)
KINDS = (b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"S", b"L", b"K", b"x", b"g", b"\0", b"z")
RECORDS = {
    "path": st.sampled_from(NAMES) | st.text(max_size=10),
    "linkpath": st.sampled_from(LINKS) | st.text(max_size=10),
    "size": st.sampled_from(["-1", "0", "512", "1" + "0" * 30, "x", "1e3"]),
    "mtime": st.sampled_from(["nan", "inf", "-inf", "-1", "1e300", "9" * 30, "x"]),
    "GNU.sparse.map": st.sampled_from(["0,1", "x", "1," * 1000]),
    "GNU.sparse.size": st.just("1099511627776"),
    "GNU.sparse.major": st.just("1"),
    "GNU.sparse.minor": st.just("0"),
    "hdrcharset": st.sampled_from(["BINARY", "x"]),
}


# --- what is made


@st.composite
def members(draw: st.DrawFn) -> tuple[tarfile.TarInfo, bytes]:
    about = tarfile.TarInfo(draw(st.sampled_from(NAMES) | st.text(min_size=1, max_size=20)))
    about.type = draw(st.sampled_from(KINDS[:6]) | st.sampled_from(KINDS))
    about.linkname = draw(st.sampled_from(LINKS))
    about.mode = draw(st.sampled_from([0o644, 0o6777, 0, 0o7777777]))
    about.mtime = draw(st.sampled_from([0, 1_700_000_000, 2**40, -1]))
    about.pax_headers = draw(st.fixed_dictionaries({}, optional=RECORDS))
    content = draw(st.binary(max_size=600))
    return about, content


@st.composite
def tars(draw: st.DrawFn, *, first: tuple[str, ...] = ()) -> bytes:
    """A tar that is mostly one, with bytes changed here and there."""
    out = io.BytesIO()
    with tarfile.open(
        fileobj=out, mode="w", format=draw(st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]))
    ) as tar:
        for name in first:
            tar.addfile(tarfile.TarInfo(name))
        for about, content in draw(st.lists(members(), max_size=6)):
            about.size = len(content)
            with contextlib.suppress(ValueError, UnicodeError):  # what no writer can write
                tar.addfile(about, io.BytesIO(content))
    return draw(changed(out.getvalue()))


@st.composite
def changed(draw: st.DrawFn, data: bytes) -> bytes:
    """The same with up to three bytes changed, perhaps cut short, perhaps packed."""
    whole = bytearray(data)
    for _ in range(draw(st.integers(0, 3)) if whole else 0):
        whole[draw(st.integers(0, len(whole) - 1))] = draw(st.integers(0, 255))
    if draw(st.integers(0, 9)) == 0:
        del whole[draw(st.integers(0, len(whole))) :]
    return gzip.compress(bytes(whole)) if draw(st.integers(0, 4)) == 0 else bytes(whole)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["sha256:" + "0" * 64]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def edited(draw: st.DrawFn, document: Any) -> Any:
    """The document with something in it replaced or left out."""
    if draw(st.integers(0, 3)) == 0:
        return draw(VALUES)
    if isinstance(document, dict) and document:
        key = draw(st.sampled_from(sorted(document)))
        if draw(st.integers(0, 3)) == 0:
            return {name: value for name, value in document.items() if name != key}
        return {**document, key: draw(edited(document[key]))}
    if isinstance(document, list) and document:
        place = draw(st.integers(0, len(document) - 1))
        return [*document[:place], draw(edited(document[place])), *document[place + 1 :]]
    return draw(VALUES)


def sha(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def as_json(document: Any) -> bytes:
    return json.dumps(document).encode()


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, bytes]:
    """An OCI layout, or what docker saves, with one of its documents changed; digests are mostly right."""
    layers = [draw(tars(first=("usr/bin/x", "etc/x"))) for _ in range(draw(st.integers(1, 3)))]
    config: Any = {"config": {"Env": ["A=1"]}, "rootfs": {"diff_ids": [sha(_plain(layer)) for layer in layers]}}
    which = draw(st.sampled_from(["none", "config", "manifest", "index", "docker"]))
    raw = as_json(draw(edited(config)) if which == "config" else config)
    described = [{"digest": sha(layer), "size": len(layer)} for layer in layers]
    document: Any = {"config": {"digest": sha(raw), "size": len(raw)}, "layers": described}
    text = as_json(draw(edited(document)) if which == "manifest" else document)
    index: Any = {"manifests": [{"digest": sha(text), "size": len(text)}]}
    blobs = {f"blobs/sha256/{sha(data)[7:]}": data for data in (*layers, raw, text)}
    names = [f"blobs/sha256/{sha(layer)[7:]}" for layer in layers]
    saved: Any = [{"Config": f"blobs/sha256/{sha(raw)[7:]}", "Layers": names}]
    if which == "docker":
        return {**blobs, "manifest.json": as_json(draw(edited(saved) | st.just(saved)))}
    return {**blobs, "oci-layout": b"{}", "index.json": as_json(draw(edited(index)) if which == "index" else index)}


def _plain(layer: bytes) -> bytes:
    try:
        return gzip.decompress(layer) if layer.startswith(b"\x1f\x8b") else layer
    except (OSError, EOFError, ValueError):
        return layer


# --- where it is read


@contextlib.contextmanager
def guarded() -> Iterator[Path]:
    """A folder for a reader, beside a file that must stay as it is, and a look at what came of it."""
    with tempfile.TemporaryDirectory(prefix="aenv-fuzz-") as place:
        (Path(place) / "precious").write_text("precious")
        folder = Path(place) / "in"
        folder.mkdir()
        yield folder
        assert sorted(os.listdir(place)) == ["in", "precious"]
        assert (Path(place) / "precious").read_text() == "precious"
        assert (Path(place) / "precious").stat().st_nlink == 1


def look(root: Path, *, links: bool = True) -> None:
    """Nothing in it has rights of its own, is a device, or (``links``) leads out."""
    for folder, names, files in os.walk(root):
        for name in (*names, *files):
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            assert stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode), path
            assert stat.S_ISLNK(mode) or not mode & 0o6000, path
            if links and stat.S_ISLNK(mode):
                assert Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)), path


def folder(data: st.DataObject) -> None:
    """A tar that an instance, or a caller, sends."""
    with guarded() as place:
        with contextlib.suppress(UsageError):
            tar_streams.unpack(io.BytesIO(data.draw(tars())), place, file_name=data.draw(st.sampled_from(["", "name"])))
        look(place)


def image(data: st.DataObject) -> None:
    """A root file system as a tar, an OCI layout as a folder or a tar, and what docker saves."""
    with guarded() as place, tempfile.TemporaryDirectory(prefix="aenv-fuzz-") as source:
        path = Path(source) / "image"
        how = data.draw(st.sampled_from(["root", "folder", "tar"]))
        if how == "root":
            path.write_bytes(data.draw(tars(first=("usr/bin/x", "etc/x"))))
        else:
            _write(path, data.draw(layouts()), as_tar=how == "tar")
        with contextlib.suppress(oci_layers.BadImage):
            look(oci_unpack.store(path, place) / "root", links=False)
        assert all(name.startswith("sha256-") and "." not in name for name in os.listdir(place))


def _write(path: Path, files: dict[str, bytes], *, as_tar: bool) -> None:
    if as_tar:
        with tarfile.open(path, "w") as tar:
            for name, content in files.items():
                about = tarfile.TarInfo(name)
                about.size = len(content)
                tar.addfile(about, io.BytesIO(content))
        return
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)


def bundle_file(data: st.DataObject) -> None:
    """The file of a bundle."""
    with guarded() as place, tempfile.TemporaryDirectory(prefix="aenv-fuzz-") as source:
        project, file = Path(source) / "project", Path(source) / "x.aenv.tar"
        (project / "src").mkdir(parents=True)
        (project / "config.json").write_text('{"name": "env", "version": "1.0.0"}')
        (project / "src" / "a.py").write_bytes(data.draw(st.binary(max_size=100)))
        (project / "link").symlink_to("src")
        archive.write(packing.pack(project), file)
        file.write_bytes(data.draw(changed(file.read_bytes())))
        try:
            with archive.Archive(file) as opened:
                asyncio.run(unpack_bundle(opened.bundle, opened.fetch, place / "out"))
        except (InvalidBundle, UsageError, EnvironmentError):
            assert not (place / "out").exists()
        look(place)


def bundle_manifest(data: st.DataObject) -> None:
    """The manifest of a bundle, as a hub gets it."""
    document = {
        "format": 1, "name": "env", "version": "1.0.0", "config": {"name": "env", "version": "1.0.0"},
        "files": [{"path": "src/a.py", "mode": 420, "size": 1, "blobs": ["sha256:" + "0" * 64]}],
        "links": [{"path": "z", "target": data.draw(st.sampled_from(LINKS))}],
    }  # fmt: skip
    with contextlib.suppress(ValueError):
        parse(as_json(data.draw(edited(document))))


def docker_file(data: st.DataObject) -> None:
    """A Dockerfile: parsed, with its words and pairs expanded."""
    words = sorted(dockerfile.INSTRUCTIONS)
    pieces = st.sampled_from(
        [*words, "<<EOF", "EOF", "\\", "\n", "#", '["a"]', "${A:-b}", "$", "--from=x", "=", '"', "'"]
    )
    text = " ".join(data.draw(st.lists(pieces | st.text(max_size=6), max_size=20)))
    with contextlib.suppress(dockerfile.BadDockerfile):
        for step in dockerfile.parse(text):
            step.words({"A": "1"})
            step.pairs({"A": "1"})


def config_json(data: st.DataObject) -> None:
    """The config.json of a project."""
    document = {
        "name": "env", "version": "1.0.0", "buildConfig": {"dockerfile": "./Dockerfile", "args": {"A": "1"}},
        "deployConfig": {"memory": "2Gi", "cpu": "1", "ttl": "30m", "network": ["a.example"], "base": "./x.tar",
                         "environmentVariables": {"A": "1"}},
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="aenv-fuzz-") as place:
        raw = as_json(data.draw(edited(document)))
        (Path(place) / "config.json").write_bytes(raw if data.draw(st.booleans()) else data.draw(changed(raw)))
        with contextlib.suppress(ConfigError):
            manifest.load(Path(place))


TARGETS: dict[str, Target] = {
    "folder": folder,
    "image": image,
    "bundle file": bundle_file,
    "bundle manifest": bundle_manifest,
    "Dockerfile": docker_file,
    "config.json": config_json,
}
