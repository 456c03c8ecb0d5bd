"""Root file systems from tars and images, whoever made them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import stat
import tarfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from aenv.isolation import images
from aenv.isolation.images import BadImage, inside, open_image, store

Entry = tuple[str, Any]
"""A name, and bytes for a file, None for a folder, ``("->", target)`` for a link, ``("=", target)`` for a hard link."""


def layer(*entries: Entry) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, what in entries:
            info = tarfile.TarInfo(name)
            info.mtime = 1_600_000_000
            if isinstance(what, bytes):
                info.size, info.mode = len(what), 0o6755
                archive.addfile(info, io.BytesIO(what))
                continue
            info.mode = 0o755
            if what is None:
                info.type = tarfile.DIRTYPE
            elif what[0] == "->":
                info.type, info.linkname = tarfile.SYMTYPE, what[1]
            elif what[0] == "=":
                info.type, info.linkname = tarfile.LNKTYPE, what[1]
            else:
                info.type = what[0]
            archive.addfile(info)
    return made.getvalue()


ROOT = (("usr", None), ("usr/bin", None), ("usr/bin/tool", b"tool"), ("bin", ("->", "usr/bin")), ("etc", None))


def sha(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def oci(folder: Path, *layers: bytes, packed: bool = True, wrong: bool = False, platform: Any = None) -> Path:
    """An OCI image layout of these layers."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(data: bytes) -> dict[str, Any]:
        (blobs / sha(data).removeprefix("sha256:")).write_bytes(data)
        return {"digest": sha(data), "size": len(data)}

    ids = [sha(b"something else" if wrong else each) for each in layers]
    config = {"config": {"Env": ["PATH=/image/bin", "FROM_IMAGE=yes"]}, "rootfs": {"diff_ids": ids}}
    manifest = {
        "config": blob(json.dumps(config).encode()),
        "layers": [blob(gzip.compress(each) if packed else each) for each in layers],
    }
    entry = blob(json.dumps(manifest).encode()) | ({"platform": platform} if platform else {})
    other = {"digest": sha(b"nothing"), "size": 7, "platform": {"os": "windows", "architecture": "amd64"}}
    (folder / "index.json").write_text(json.dumps({"manifests": [other, entry]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def docker_saved(path: Path, *layers: bytes) -> Path:
    config = json.dumps({"config": {}, "rootfs": {"diff_ids": [sha(each) for each in layers]}}).encode()
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = [{"Config": "config.json", "RepoTags": ["x:1"], "Layers": names}]
    files = [
        ("config.json", config),
        ("manifest.json", json.dumps(manifest).encode()),
        *zip(names, layers, strict=True),
    ]
    path.write_bytes(layer(*files))
    return path


def unpacked(source: Path, tmp_path: Path) -> Path:
    return store(source, tmp_path / "store") / "root"


def content(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_file():
            found[name] = path.read_text()
    return found


def test_a_tar_of_a_root_file_system_is_unpacked_once(tmp_path: Path) -> None:
    source = tmp_path / "root.tar"
    source.write_bytes(layer(*ROOT))
    root = unpacked(source, tmp_path)
    assert content(root) == {"bin": "-> usr/bin", "usr/bin/tool": "tool"}
    (root / "mark").touch()
    assert unpacked(source, tmp_path) == root  # a second time, nothing is done
    assert (root / "mark").exists()
    assert len(list((tmp_path / "store").iterdir())) == 1


def test_owners_setuid_bits_and_devices_are_left_out(tmp_path: Path) -> None:
    source = tmp_path / "root.tar"
    source.write_bytes(layer(*ROOT, ("etc/null", (tarfile.CHRTYPE,)), ("etc/pipe", (tarfile.FIFOTYPE,))))
    root = unpacked(source, tmp_path)
    about = (root / "usr" / "bin" / "tool").stat()
    assert stat.S_IMODE(about.st_mode) == 0o755
    assert about.st_uid == os.geteuid()
    assert about.st_mtime == 1_600_000_000
    assert not (root / "etc" / "null").exists()
    assert not (root / "etc" / "pipe").exists()


UPPER = layer(
    ("usr/bin/.wh.tool", b""),
    ("usr/bin/new", b"new"),
    ("opt", None),
    ("opt/mine", b"mine"),
    ("opt/.wh..wh..opq", b""),
    ("var/.wh.gone", b""),
    ("srv", b"now a file"),
    ("bin/through-a-link", b"x"),
)
LOWER = layer(
    *ROOT, ("opt", None), ("opt/old", b"old"), ("opt/deep/old", b"old"), ("var/gone/far", b""), ("srv/x", b"")
)
STACKED = {
    "bin": "-> usr/bin", "usr/bin/new": "new", "usr/bin/through-a-link": "x", "opt/mine": "mine", "srv": "now a file",
}  # fmt: skip


@pytest.mark.parametrize("packed", [True, False])
def test_a_layer_hides_what_it_says_of_those_below(tmp_path: Path, packed: bool) -> None:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    source = oci(tmp_path / "i", LOWER, UPPER, packed=packed, platform={"os": "linux", "architecture": machine})
    root = unpacked(source, tmp_path)
    assert content(root) == STACKED
    assert json.loads((root.parent / "image.json").read_text())["variables"]["FROM_IMAGE"] == "yes"


def test_an_image_layout_may_be_in_a_tar(tmp_path: Path) -> None:
    source = oci(tmp_path / "i", LOWER, UPPER)
    with tarfile.open(tmp_path / "i.tar.gz", "w:gz") as archive:
        archive.add(source, ".")
    assert content(unpacked(tmp_path / "i.tar.gz", tmp_path)) == STACKED


def test_what_docker_saves_is_unpacked(tmp_path: Path) -> None:
    assert content(unpacked(docker_saved(tmp_path / "saved.tar", LOWER, UPPER), tmp_path)) == STACKED


@pytest.mark.parametrize(
    "entries",
    [
        [("../outside", b"!")],
        [("/../../outside", b"!")],
        [("usr/../../outside", b"!")],
        [("way", ("->", "..")), ("way/outside", b"!")],
        [("way", ("->", "../..")), ("way/outside", b"!")],
        [("way", ("->", "{tmp}")), ("way/outside", b"!")],
        [("a", ("->", "b")), ("b", ("->", "{tmp}")), ("a/outside", b"!")],
        [("way", ("->", "{tmp}/outside")), ("way", b"!")],
        [("way", ("->", "{tmp}")), ("way/.wh.precious", b"")],
        [("way", ("->", "{tmp}")), ("way/.wh..wh..opq", b"")],
        [("way", ("->", "..")), ("way/x", None), ("way/x/outside", b"!")],
    ],
)
def test_nothing_is_written_or_removed_outside(tmp_path: Path, entries: list[Entry]) -> None:
    tmp = tmp_path / "host"
    tmp.mkdir()
    (tmp / "precious").write_text("precious")
    spelled = [
        (name, (what[0], what[1].format(tmp=tmp)) if isinstance(what, tuple) else what) for name, what in entries
    ]
    source = tmp_path / "bad.tar"
    source.write_bytes(layer(*ROOT, *spelled))
    unpacked(source, tmp_path)
    assert {path.name for path in tmp.iterdir()} == {"precious"}
    assert not list(tmp_path.glob("outside"))
    assert not list((tmp_path / "store").glob("outside"))


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../../../../etc/passwd", "way/passwd", "way"])
def test_a_hard_link_does_not_reach_a_file_of_the_hosts(tmp_path: Path, target: str) -> None:
    source = tmp_path / "bad.tar"
    source.write_bytes(layer(*ROOT, ("way", ("->", "/etc")), ("link", ("=", target))))
    with pytest.raises(BadImage, match="cannot be unpacked"):
        unpacked(source, tmp_path)
    assert list((tmp_path / "store").iterdir()) == []  # nothing half done is left


def test_links_that_go_round_in_circles_end(tmp_path: Path) -> None:
    source = tmp_path / "bad.tar"
    source.write_bytes(layer(*ROOT, ("a", ("->", "b")), ("b", ("->", "a")), ("a/x", b"")))
    with pytest.raises(BadImage, match="circles"):
        unpacked(source, tmp_path)


def test_a_layer_that_is_not_the_promised_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadImage, match="not what the image promises"):
        unpacked(oci(tmp_path / "i", LOWER, wrong=True), tmp_path)
    assert list((tmp_path / "store").iterdir()) == []


def test_there_is_an_end_to_what_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MOST_BYTES", 1000)
    source = tmp_path / "big.tar"
    source.write_bytes(layer(*ROOT, ("big", bytes(2000))))
    with pytest.raises(BadImage, match="more in it than"):
        unpacked(source, tmp_path)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.write_bytes(b"not a tar at all" * 100), "cannot be read as a tar"),
        (lambda path: path.write_bytes(layer(("notes.txt", b"hello"))), "holds no image"),
        (lambda path: path.write_bytes(layer(*ROOT)[:700]), "cannot be"),
        (lambda path: path.write_bytes(layer(("manifest.json", b"[]"))), "makes no sense"),
        (lambda path: path.write_bytes(layer(("manifest.json", b"{"))), "not JSON"),
        (lambda path: path.write_bytes(layer(("oci-layout", b"{}"), ("index.json", b'{"manifests": []}'))), "linux/"),
        (lambda path: path.mkdir(), "neither an OCI image layout"),
    ],
)
def test_what_is_no_image_is_said(tmp_path: Path, make: Any, said: str) -> None:
    make(tmp_path / "x")
    with pytest.raises(BadImage, match=said), ExitStack() as stack:
        open_image(tmp_path / "x", stack).unpack(tmp_path / "out")


def test_an_image_for_other_machines_only_is_said(tmp_path: Path) -> None:
    source = oci(tmp_path / "i", LOWER, platform={"os": "linux", "architecture": "pdp11"})
    with pytest.raises(BadImage, match="nothing for linux/"):
        unpacked(source, tmp_path)


def test_a_path_is_followed_as_if_the_root_were_the_root(tmp_path: Path) -> None:
    (tmp_path / "r" / "usr" / "lib").mkdir(parents=True)
    (tmp_path / "r" / "lib").symlink_to("/usr/lib")
    (tmp_path / "r" / "up").symlink_to("../../../usr")
    root = str(tmp_path / "r")
    assert inside(root, "/lib") == f"{root}/usr/lib"
    assert inside(root, "/up/lib/../..") == root
    assert inside(root, "/../..") == root
