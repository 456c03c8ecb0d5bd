"""Root file systems from untrusted tars and images."""

from __future__ import annotations

import contextlib
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

from aenv.images import oci_layers
from aenv.images.oci_layers import BadImage, unpack_tree
from aenv.images.oci_unpack import open_image, store
from aenv.isolation.files.rooted_paths import resolve_in_root
from aenv.isolation.files.tar_limits import LAST_TIME

Entry = tuple[str, Any]
"""Name, and bytes for a file, None for a folder, ``("->", target)`` for a link, ``("=", target)`` for a hard link."""


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
    """Create an OCI image layout of these layers."""
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
    assert unpacked(source, tmp_path) == root  # the second call unpacks nothing
    assert (root / "mark").exists()
    assert len(list((tmp_path / "store").iterdir())) == 1


def test_owners_setuid_bits_and_devices_are_dropped(tmp_path: Path) -> None:
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
def test_whiteouts_hide_entries_of_lower_layers(tmp_path: Path, packed: bool) -> None:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    source = oci(tmp_path / "i", LOWER, UPPER, packed=packed, platform={"os": "linux", "architecture": machine})
    root = unpacked(source, tmp_path)
    assert content(root) == STACKED
    assert json.loads((root.parent / "image.json").read_text())["variables"]["FROM_IMAGE"] == "yes"


def test_an_oci_layout_may_be_in_a_tar(tmp_path: Path) -> None:
    source = oci(tmp_path / "i", LOWER, UPPER)
    with tarfile.open(tmp_path / "i.tar.gz", "w:gz") as archive:
        archive.add(source, ".")
    assert content(unpacked(tmp_path / "i.tar.gz", tmp_path)) == STACKED


def test_a_docker_save_file_is_unpacked(tmp_path: Path) -> None:
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
def test_a_hard_link_does_not_reach_a_host_file(tmp_path: Path, target: str) -> None:
    source = tmp_path / "bad.tar"
    source.write_bytes(layer(*ROOT, ("way", ("->", "/etc")), ("link", ("=", target))))
    with pytest.raises(BadImage, match="cannot be unpacked"):
        unpacked(source, tmp_path)
    assert list((tmp_path / "store").iterdir()) == []  # no partial result is left


def test_a_symlink_loop_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "bad.tar"
    source.write_bytes(layer(*ROOT, ("a", ("->", "b")), ("b", ("->", "a")), ("a/x", b"")))
    with pytest.raises(BadImage, match="too many levels of symbolic links"):
        unpacked(source, tmp_path)


def test_a_layer_with_a_wrong_digest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadImage, match=r"not match the declared (digest|diff_id)"):
        unpacked(oci(tmp_path / "i", LOWER, wrong=True), tmp_path)
    assert list((tmp_path / "store").iterdir()) == []


def test_an_image_over_the_byte_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oci_layers, "MOST_BYTES", 1000)
    source = tmp_path / "big.tar"
    source.write_bytes(layer(*ROOT, ("big", bytes(2000))))
    with pytest.raises(BadImage, match="more than 1000 bytes"):
        unpacked(source, tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_bytes(b"not a tar at all" * 100), "cannot be read as a tar"),
        (lambda path: path.write_bytes(layer(("notes.txt", b"hello"))), "holds no image"),
        (lambda path: path.write_bytes(layer(*ROOT)[:700]), "cannot be"),
        (lambda path: path.write_bytes(layer(("manifest.json", b"[]"))), "invalid image manifest"),
        (lambda path: path.write_bytes(layer(("manifest.json", b"{"))), "not JSON"),
        (lambda path: path.write_bytes(layer(("oci-layout", b"{}"), ("index.json", b'{"manifests": []}'))), "linux/"),
        (lambda path: path.mkdir(), "neither an OCI image layout"),
    ],
)
def test_a_file_that_is_not_an_image_is_refused_with_a_reason(tmp_path: Path, make: Any, message: str) -> None:
    make(tmp_path / "x")
    with pytest.raises(BadImage, match=message), ExitStack() as stack:
        open_image(tmp_path / "x", stack).unpack(tmp_path / "out")


def test_an_image_for_other_architectures_only_is_refused(tmp_path: Path) -> None:
    source = oci(tmp_path / "i", LOWER, platform={"os": "linux", "architecture": "pdp11"})
    with pytest.raises(BadImage, match="no manifest for linux/"):
        unpacked(source, tmp_path)


def test_paths_resolve_as_in_a_chroot(tmp_path: Path) -> None:
    (tmp_path / "r" / "usr" / "lib").mkdir(parents=True)
    (tmp_path / "r" / "lib").symlink_to("/usr/lib")
    (tmp_path / "r" / "up").symlink_to("../../../usr")
    root = str(tmp_path / "r")
    assert resolve_in_root(root, "/lib") == f"{root}/usr/lib"
    assert resolve_in_root(root, "/up/lib/../..") == root
    assert resolve_in_root(root, "/../..") == root


def rewritten(folder: Path, part: str, change: Any) -> Path:
    """Change a document of a layout in place, so that its digest does not match any more."""
    index = json.loads((folder / "index.json").read_text())
    manifest = index["manifests"][1]
    place = folder / manifest["digest"].replace("sha256:", "blobs/sha256/")
    if part != "manifest":
        document = json.loads(place.read_text())
        found = document["config"] if part == "config" else document["layers"][0]
        place = folder / found["digest"].replace("sha256:", "blobs/sha256/")
    place.write_bytes(change(place.read_bytes()))
    return folder


def with_config(raw: bytes) -> bytes:
    """Change a variable of the config without changing its length."""
    return raw.replace(b"FROM_IMAGE=yes", b"FROM_IMAGE=bad")


@pytest.mark.attack("images")
@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("manifest", lambda raw: raw.replace(b'"layers"', b'"layers" ')),
        ("manifest", lambda raw: raw + b" "),
        ("config", with_config),
        ("config", lambda raw: raw + b"\n"),
        ("layer", lambda raw: gzip.compress(gzip.decompress(raw), 1)),
        ("layer", lambda raw: raw + gzip.compress(b"")),
        ("layer", lambda raw: raw + bytes(512)),
    ],
)
def test_a_part_without_the_declared_digest_or_size_is_refused(tmp_path: Path, part: str, change: Any) -> None:
    source = rewritten(oci(tmp_path / "i", LOWER), part, change)
    with pytest.raises(BadImage, match=r"declared (digest|diff_id)"):
        unpacked(source, tmp_path)
    assert not (tmp_path / "store").exists() or list((tmp_path / "store").iterdir()) == []


@pytest.mark.attack("images")
def test_a_config_is_not_stored_under_the_digest_of_another_image(tmp_path: Path) -> None:
    good = oci(tmp_path / "good", LOWER)
    bad = rewritten(oci(tmp_path / "bad", LOWER), "config", with_config)
    with pytest.raises(BadImage, match="digest"):
        unpacked(bad, tmp_path)
    root = unpacked(good, tmp_path)
    assert json.loads((root.parent / "image.json").read_text())["variables"]["FROM_IMAGE"] == "yes"


def with_index(folder: Path, *descriptors: Any) -> Path:
    (folder / "index.json").write_text(json.dumps({"manifests": list(descriptors)}))
    return folder


def put(folder: Path, document: Any) -> dict[str, Any]:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    (folder / sha(data).replace("sha256:", "blobs/sha256/")).write_bytes(data)
    return {"digest": sha(data), "size": len(data)}


def entry_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "index.json").read_text())["manifests"][1]
    return found


@pytest.mark.attack("images")
@pytest.mark.parametrize(
    "change",
    [
        lambda entry: {"digest": entry["digest"]},
        lambda entry: {**entry, "size": entry["size"] - 1},
        lambda entry: {**entry, "size": str(entry["size"])},
        lambda entry: {**entry, "size": True},
        lambda entry: {**entry, "size": -1},
        lambda entry: {**entry, "digest": "sha256:" + "0" * 64},
        lambda entry: {**entry, "digest": "sha256:../../../index.json"},
        lambda entry: {**entry, "digest": entry["digest"].upper()},
        lambda entry: {**entry, "digest": entry["digest"] + "\n"},
        lambda entry: {**entry, "digest": "md5:" + "0" * 32},
        lambda entry: [entry],
        lambda entry: entry["digest"],
        lambda entry: None,
    ],
)
def test_an_invalid_descriptor_is_refused(tmp_path: Path, change: Any) -> None:
    source = oci(tmp_path / "i", LOWER)
    with pytest.raises(BadImage):
        unpacked(with_index(source, change(entry_of(source))), tmp_path)


def nested(folder: Path, depth: int) -> Path:
    entry = entry_of(folder)
    for _ in range(depth):
        entry = put(folder, {"manifests": [entry]})
    return with_index(folder, entry)


def test_an_index_may_point_at_an_index(tmp_path: Path) -> None:
    assert content(unpacked(nested(oci(tmp_path / "i", LOWER, UPPER), 1), tmp_path)) == STACKED


@pytest.mark.attack("images")
def test_too_many_nested_indexes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadImage, match="indexes"):
        unpacked(nested(oci(tmp_path / "i", LOWER), 50), tmp_path)


@pytest.mark.attack("images")
@pytest.mark.parametrize(
    "document",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'"' + b"x" * (9 << 20) + b'"',
        b"1" * 10_000,
        b"\xff\xfe\x00",
        b"null",
        b"[]",
        b"{}",
        b'{"config": 1, "layers": 2}',
        b'{"manifests": {}, "layers": []}',
        b'{"manifests": [], "layers": [], "config": {}}',
    ],
)
def test_invalid_documents_are_refused(tmp_path: Path, document: bytes) -> None:
    source = oci(tmp_path / "i", LOWER)
    with pytest.raises(BadImage):
        unpacked(with_index(source, put(source, document)), tmp_path)
    (source / "index.json").write_bytes(document)
    with pytest.raises(BadImage):
        unpacked(source, tmp_path)


def with_manifest(folder: Path, **changes: Any) -> Path:
    """Replace the manifest of an image, with a matching digest."""
    raw = (folder / entry_of(folder)["digest"].replace("sha256:", "blobs/sha256/")).read_bytes()
    return with_index(folder, put(folder, {**json.loads(raw), **changes}))


@pytest.mark.attack("images")
@pytest.mark.parametrize(
    ("kind", "taken"),
    [
        ("application/vnd.oci.image.layer.v1.tar+gzip", True),
        ("application/vnd.oci.image.layer.v1.tar", True),
        ("application/vnd.docker.image.rootfs.diff.tar.gzip", True),
        ("application/vnd.oci.image.layer.v1.tar+zstd", False),
        ("application/vnd.oci.image.layer.v1.tar+gzip+encrypted", False),
        ("application/octet-stream", False),
        ("", False),
        (7, False),
    ],
)
def test_layers_that_are_not_tars_are_refused(tmp_path: Path, kind: Any, taken: bool) -> None:
    source = oci(tmp_path / "i", LOWER)
    raw = (source / entry_of(source)["digest"].replace("sha256:", "blobs/sha256/")).read_bytes()
    layers = [{**each, "mediaType": kind} for each in json.loads(raw)["layers"]]
    with_manifest(source, layers=layers)
    if taken:
        assert unpacked(source, tmp_path).is_dir()
        return
    with pytest.raises(BadImage):
        unpacked(source, tmp_path)


@pytest.mark.attack("images")
@pytest.mark.parametrize("variables", [["A\0B=1"], ["A=1\0B=2"], [7], "A=1", {"A": "1"}, [["A=1"]]])
def test_invalid_environment_variables_are_refused(tmp_path: Path, variables: Any) -> None:
    source = oci(tmp_path / "i", LOWER)
    config = put(source, {"config": {"Env": variables}, "rootfs": {"diff_ids": [sha(LOWER)]}})
    with_manifest(source, config=config)
    with pytest.raises(BadImage):
        unpacked(source, tmp_path)


@pytest.mark.attack("images")
@pytest.mark.parametrize("name", [".wh..", ".wh...", ".wh.", "deep/.wh...", "deep/.wh..", "way/.wh..."])
def test_a_whiteout_removes_nothing_but_an_entry_of_its_folder(tmp_path: Path, name: str) -> None:
    below = layer(*ROOT, ("deep", None), ("deep/kept", b"kept"), ("way", ("->", "deep")))
    source = oci(tmp_path / "i", below, layer((name, b"")))
    with pytest.raises(BadImage, match="does not name a file"):
        unpacked(source, tmp_path)
    assert list((tmp_path / "store").iterdir()) == []


def test_aufs_metadata_is_skipped(tmp_path: Path) -> None:
    source = oci(tmp_path / "i", LOWER, layer((".wh..wh.plnk", None), (".wh..wh.aufs", b"x")), UPPER)
    assert content(unpacked(source, tmp_path)) == STACKED


@pytest.mark.attack("images")
def test_a_whiteout_through_a_link_stays_inside(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "precious").write_text("precious")
    below = layer(*ROOT, ("way", ("->", str(tmp_path / "host"))), ("up", ("->", "../../../..")), ("etc/x", b"x"))
    above = layer(("way/.wh.precious", b""), ("up/.wh..wh..opq", b""), ("up/etc/.wh.x", b""))
    root = unpacked(oci(tmp_path / "i", below, above), tmp_path)
    assert (tmp_path / "host" / "precious").read_text() == "precious"
    assert not (root / "etc" / "x").exists()


def member(name: str, data: bytes = b"", **fields: Any) -> bytes:
    """Return a tar of a root and one member with any fields, including pax records."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("usr/bin/x"))
        archive.addfile(tarfile.TarInfo("etc/x"))
        info = tarfile.TarInfo(name)
        info.size = len(data)
        for key, value in fields.items():
            setattr(info, key, value)
        archive.addfile(info, io.BytesIO(data))
    return made.getvalue()


@pytest.mark.attack("images")
@pytest.mark.parametrize("time", ["nan", "inf", "-inf", "-1", "-1e30", "1e30", "9223372036854775808", "1e308"])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE])
def test_extreme_modification_times_are_clamped(tmp_path: Path, time: str, kind: bytes) -> None:
    source = tmp_path / "odd.tar"
    source.write_bytes(member("odd", type=kind, pax_headers={"mtime": time}))
    assert 0 <= (unpacked(source, tmp_path) / "odd").stat().st_mtime <= LAST_TIME


@pytest.mark.attack("images")
@pytest.mark.parametrize(
    "data",
    [
        member("a\0b", pax_headers={"path": "a\0b"}),
        member("x" * 300),
        member("/".join("d" * 300)),
        member("/".join("d" * 1900)),
        member("neg", pax_headers={"size": "-512"}),
        member("big", pax_headers={"size": str(1 << 62)}),
        member("hole", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9" * 20}),
        member("hole", type=tarfile.GNUTYPE_SPARSE),
        member("hole", pax_headers={"GNU.sparse.map": "0,1", "GNU.sparse.size": "1099511627776"}),
        member("long", pax_headers={"comment": "x" * 100_000}),
        member("link", type=tarfile.SYMTYPE, linkname=""),
        member("link", type=tarfile.SYMTYPE, linkname="x" * 5000),
        member("link", type=tarfile.LNKTYPE, linkname="link"),
        member("link", type=tarfile.LNKTYPE, linkname="/"),
        member("link", type=tarfile.LNKTYPE, linkname="usr"),
        member("usr/bin/x/y", b"in a file"),
        gzip.compress(member("x"))[:-6],
        gzip.compress(member("x" * 90))[:40] + bytes(100),
        b"\xfd7zXZ\x00" + bytes(600),
        b"BZh9" + bytes(600),
    ],
)  # fmt: skip
def test_a_corrupt_or_hostile_tar_is_refused_and_leaves_nothing(tmp_path: Path, data: bytes) -> None:
    source = tmp_path / "bad.tar"
    source.write_bytes(data)
    with pytest.raises(BadImage):
        unpacked(source, tmp_path)
    assert not (tmp_path / "store").exists() or list((tmp_path / "store").iterdir()) == []
    with pytest.raises(BadImage):
        unpacked(oci(tmp_path / "i", data, packed=False), tmp_path)
    assert list((tmp_path / "store").iterdir()) == []


@pytest.mark.attack("images")
def test_links_do_not_make_a_tree_deeper_than_the_limit(tmp_path: Path) -> None:
    folder = "/".join("d" * 200)
    source = tmp_path / "deep.tar"
    source.write_bytes(layer(*ROOT, (f"{folder}/x", b""), ("way", ("->", folder)), (f"way/{folder}/x", b"")))
    with pytest.raises(BadImage, match="folders deep"):
        unpacked(source, tmp_path)
    assert list((tmp_path / "store").iterdir()) == []


def test_the_later_of_two_entries_with_one_name_wins(tmp_path: Path) -> None:
    source = tmp_path / "twice.tar"
    twice = [("a", b"1"), ("a", b"2"), ("b", None), ("b", b"3"), ("c", ("->", "/etc/passwd")), ("c", b"4")]
    source.write_bytes(layer(*ROOT, *twice))
    root = unpacked(source, tmp_path)
    assert {name: (root / name).read_text() for name in "abc"} == {"a": "2", "b": "3", "c": "4"}
    assert not any((root / name).is_symlink() for name in "abc")


@pytest.mark.attack("images")
def test_an_image_larger_than_the_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oci_layers, "MIN_FREE_BYTES", 1 << 62)
    source = tmp_path / "root.tar"
    source.write_bytes(layer(*ROOT))
    with pytest.raises(BadImage, match="disk"):
        unpacked(source, tmp_path)


@pytest.mark.attack("images")
def test_endless_padding_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oci_layers, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(oci_layers, "MOST_FILES", 100)
    padded = LOWER + bytes(64 << 20)
    with pytest.raises(BadImage, match="larger than any image"):
        unpacked(oci(tmp_path / "i", padded), tmp_path)


@pytest.mark.attack("images")
@pytest.mark.parametrize("name", ["index.json", "oci-layout", "config"])
def test_a_pipe_in_a_layout_does_not_block(tmp_path: Path, name: str) -> None:
    source = oci(tmp_path / "i", LOWER)
    place = source / name
    if name == "config":
        raw = (source / entry_of(source)["digest"].replace("sha256:", "blobs/sha256/")).read_bytes()
        place = source / json.loads(raw)["config"]["digest"].replace("sha256:", "blobs/sha256/")
    place.unlink()
    os.mkfifo(place)
    with pytest.raises(BadImage):
        unpacked(source, tmp_path)


@pytest.mark.attack("images")
@pytest.mark.parametrize("name", ["../config.json", "/etc/passwd", "", "x/../../config.json", 7, None, ["config.json"]])
def test_a_docker_save_file_refers_to_its_own_members_only(tmp_path: Path, name: Any) -> None:
    (tmp_path / "config.json").write_text('{"rootfs": {"diff_ids": []}}')
    for manifest in ({"Config": name, "Layers": []}, {"Config": "config.json", "Layers": [name]}):
        config = json.dumps({"rootfs": {"diff_ids": [sha(LOWER)] * len(manifest["Layers"])}}).encode()
        files = [("manifest.json", json.dumps([manifest]).encode()), ("config.json", config)]
        (tmp_path / "saved.tar").write_bytes(layer(*files))
        with pytest.raises(BadImage):
            unpacked(tmp_path / "saved.tar", tmp_path)


@pytest.mark.attack("images")
@pytest.mark.parametrize("target", ["../../etc/passwd", "/etc/passwd", "layer.tar", "../0/layer.tar/x"])
def test_a_layer_that_is_a_link_does_not_lead_to_a_host_file(tmp_path: Path, target: str) -> None:
    config = json.dumps({"rootfs": {"diff_ids": [sha(LOWER)]}}).encode()
    manifest = json.dumps([{"Config": "c.json", "Layers": ["0/layer.tar"]}]).encode()
    files = [("manifest.json", manifest), ("c.json", config), ("0/layer.tar", ("->", target))]
    (tmp_path / "saved.tar").write_bytes(layer(*files))
    with pytest.raises(BadImage):
        unpacked(tmp_path / "saved.tar", tmp_path)


@pytest.mark.attack("images")
@pytest.mark.parametrize(
    "entries",
    [
        [("../outside", b"!")],
        [("/outside", b"!")],
        [("way", ("->", "{tmp}")), ("way/outside", b"!")],
        [("way", ("->", "..")), ("way/../../outside", b"!")],
        [("link", ("=", "{tmp}/precious"))],
        [("link", ("=", "../precious"))],
        [("way", ("->", "{tmp}")), ("link", ("=", "way/precious"))],
        [(".wh..", b""), (".wh...", b""), (".wh..wh..opq", b"")],
    ],
)
def test_a_tree_from_a_box_stays_below_its_target(tmp_path: Path, entries: list[Entry]) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "mine").write_text("mine")
    spelled = [
        (name, (what[0], what[1].format(tmp=tmp_path)) if isinstance(what, tuple) else what) for name, what in entries
    ]
    with contextlib.suppress(BadImage):
        unpack_tree(io.BytesIO(layer(*spelled)), tmp_path / "root", "below")
    assert {path.name for path in tmp_path.iterdir()} == {"precious", "root"}
    assert (tmp_path / "precious").stat().st_nlink == 1
    assert {path.name for path in (tmp_path / "root").iterdir()} - {tmp_path.parts[1]} <= {"mine", "below"}
    assert (tmp_path / "root" / "mine").read_text() == "mine"


def test_a_tree_may_be_one_file(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    unpack_tree(io.BytesIO(layer((".", b"text"))), tmp_path / "root", "etc/name")
    assert (tmp_path / "root" / "etc" / "name").read_text() == "text"


def test_hard_links_of_a_tree_are_kept(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    unpack_tree(io.BytesIO(layer((".", None), ("./a", b"text"), ("./b", ("=", "./a")))), tmp_path / "root", "x")
    assert (tmp_path / "root" / "x" / "b").read_text() == "text"
