"""Pack a project into a bundle and a bundle file, and unpack it: same bytes, nothing outside of the folder."""

import asyncio
import io
import json
import os
import random
import shutil
import tarfile
from pathlib import Path

import pytest

from aenv.errors import ConfigError, Conflict, EnvironmentError, InvalidBundle, UsageError
from aenv.project import scaffold
from aenv.project.bundles import archive
from aenv.project.bundles.archive import Archive
from aenv.project.bundles.packing import pack
from aenv.project.bundles.unpack import unpack
from aenv.schema.bundle import BLOB_LIMIT, Bundle, digest_of


@pytest.fixture
def project(tmp_path):
    return scaffold.create("hello", parent_dir=tmp_path).root


def tree(root: Path):
    """Return everything below a folder; config.json as parsed JSON, since its formatting may change."""
    found = {
        str(path.relative_to(root)): (
            os.readlink(path) if path.is_symlink() else (path.read_bytes(), path.stat().st_mode & 0o777)
        )
        for path in root.rglob("*")
        if path.is_symlink() or path.is_file()
    }
    return found | {"config.json": list(json.loads(found["config.json"][0]).items())}


def carried(project, target):
    packed = pack(project)

    async def fetch(digest):
        return packed.read(digest)

    asyncio.run(unpack(packed.bundle, fetch, target))
    return packed


def test_unpacking_restores_the_packed_files(project, tmp_path):
    (project / "run.sh").write_text("#!/bin/sh\n")
    (project / "run.sh").chmod(0o755)
    (project / "empty").touch()
    (project / "big.bin").write_bytes(random.Random(1).randbytes(2 * BLOB_LIMIT + 3))
    (project / "twice.bin").write_bytes((project / "big.bin").read_bytes())
    (project / "src/link.py").symlink_to("custom_env.py")
    (project / "src/up").symlink_to("../run.sh")
    carried(project, tmp_path / "copy")
    assert tree(tmp_path / "copy") == tree(project)
    assert pack(tmp_path / "copy").bundle.digest() == pack(project).bundle.digest()


def test_the_same_files_give_the_same_bytes(project, tmp_path):
    other = tmp_path / "elsewhere" / "other-name"
    shutil.copytree(project, other, symlinks=True)
    for path in sorted(other.rglob("*"), reverse=True):
        os.utime(path, (1, 1))
        if path.is_file():
            path.chmod(0o600)
    (other / "src/__pycache__").mkdir()
    (other / "src/__pycache__/x.pyc").write_bytes(b"x")
    files = []
    for root in (project, other):
        packed = pack(root)
        archive.write(packed, tmp_path / f"{len(files)}.aenv.tar")
        files.append((tmp_path / f"{len(files)}.aenv.tar").read_bytes())
    assert files[0] == files[1]


def test_another_version_changes_only_the_config(project):
    one, other = pack(project).bundle, pack(project, version="2.0.0").bundle
    assert other.version == other.config["version"] == "2.0.0"
    assert one.files == other.files
    with pytest.raises(ConfigError):
        pack(project, version="not a version")


def test_a_file_that_changes_after_packing_is_detected(project):
    packed = pack(project)
    (project / "README.md").write_text("something else")
    with pytest.raises(Conflict, match=r"README\.md has changed"):
        [packed.read(digest) for digest in packed.bundle.blobs()]


@pytest.mark.parametrize(
    ("path", "target"),
    [("out", "/etc/passwd"), ("out", "../../x"), ("src/out", "../../x"), ("a\\b", None), ("x\n", None)],
)
def test_unsafe_paths_are_rejected_when_a_bundle_is_made(project, path, target):
    if target is None:
        (project / path).touch()
    else:
        (project / path).symlink_to(target)
    with pytest.raises(ConfigError, match="cannot be part of a bundle") as caught:
        pack(project)
    assert ".aenvignore" in caught.value.details["hint"]


def test_a_bundle_file_unpacks_to_the_project(project, tmp_path):
    packed = pack(project)
    file = tmp_path / archive.file_name(packed.bundle)
    archive.write(packed, file)
    with tarfile.open(file) as tar:  # any tar program can read it
        assert tar.getnames()[0] == "bundle.json"
    with Archive(file) as opened:
        asyncio.run(unpack(opened.bundle, opened.fetch, tmp_path / "copy"))
    assert tree(tmp_path / "copy") == tree(project)


def test_an_existing_folder_is_not_touched(project, tmp_path):
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/mine").touch()
    with pytest.raises(UsageError, match="exists already"):
        carried(project, tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["mine"]
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(UsageError, match="exists already"):
        carried(project, tmp_path / "link")
    (tmp_path / "empty").mkdir()
    carried(project, tmp_path / "empty")
    assert (tmp_path / "empty/config.json").is_file()


@pytest.mark.parametrize("lie", [b"other", b"", b"x" * 100])
def test_a_blob_that_does_not_match_its_digest_leaves_nothing(tmp_path, lie):
    good = digest_of(b"right")
    bundle = Bundle(
        name="a", version="1", config={"name": "a", "version": "1"},
        files=[{"path": "f", "size": 5, "blobs": [good]}],
    )  # fmt: skip

    async def fetch(digest):
        return lie

    with pytest.raises(InvalidBundle, match="digest"):
        asyncio.run(unpack(bundle, fetch, tmp_path / "deep" / "er" / "out", read_only=True))
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_larger_than_the_free_space_is_not_unpacked(project, tmp_path, monkeypatch):
    full = shutil._ntuple_diskusage(10**9, 10**9 - 1000, 1000)
    monkeypatch.setattr("aenv.project.bundles.unpack.shutil.disk_usage", lambda path: full)
    with pytest.raises(EnvironmentError, match="do not fit"):
        carried(project, tmp_path / "new" / "copy")
    assert os.listdir(tmp_path) == ["hello"]


# --- malicious files


def member(tar, name, data=b"", kind=tarfile.REGTYPE, **more):
    about = tarfile.TarInfo(name)
    about.size, about.type = len(data), kind
    for key, value in more.items():
        setattr(about, key, value)
    tar.addfile(about, io.BytesIO(data))


def forged(path, write, form=tarfile.USTAR_FORMAT):
    with tarfile.open(path, "w", format=form) as tar:
        write(tar)
    return path


def manifest(**changes):
    whole = {
        "format": 1,
        "name": "a",
        "version": "1",
        "files": [],
        "links": [],
        "config": {"name": "a", "version": "1"},
    }
    return json.dumps(whole | changes, sort_keys=True, separators=(",", ":")).encode()


def listed(*names):
    return [{"path": name, "mode": 0o644, "size": 1, "blobs": [digest_of(b"x")]} for name in names]


def plain(tar, **changes):
    member(tar, "bundle.json", manifest(**changes))
    if changes.get("files"):
        member(tar, f"blobs/{digest_of(b'x').replace(':', '-')}", b"x")


ZEROS = digest_of(bytes(BLOB_LIMIT))


def zeros(count):
    return [{"path": f"{n:05}", "mode": 0o644, "size": BLOB_LIMIT, "blobs": [ZEROS]} for n in range(count)]


HARM = {
    "path traversal": lambda tar: plain(tar, files=listed("../../escaped")),
    "absolute path": lambda tar: plain(tar, files=listed("/tmp/escaped")),
    "link out": lambda tar: plain(tar, links=[{"path": "out", "target": "../.."}]),
    "absolute link": lambda tar: plain(tar, links=[{"path": "out", "target": "/etc"}]),
    "a file behind a link": lambda tar: plain(tar, files=listed("d/x"), links=[{"path": "d", "target": "e"}]),
    "git hooks": lambda tar: plain(tar, files=listed(".git/hooks/pre-commit")),
    "a bomb": lambda tar: plain(tar, files=zeros(2000)),
    "a plain tar with traversal": lambda tar: member(tar, "../../escaped", b"x"),
    "a member that is a link": lambda tar: (plain(tar), member(tar, "x", kind=tarfile.SYMTYPE, linkname="/etc")),
    "a device": lambda tar: (plain(tar), member(tar, "null", kind=tarfile.CHRTYPE, devmajor=1, devminor=3)),
    "a manifest that is a device": lambda tar: member(tar, "bundle.json", kind=tarfile.CHRTYPE),
    "a manifest that is a link": lambda tar: member(tar, "bundle.json", kind=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "more than is listed": lambda tar: (plain(tar), member(tar, "blobs/more", b"x")),
    "less than is listed": lambda tar: member(tar, "bundle.json", manifest(files=listed("x"))),
    "not JSON": lambda tar: member(tar, "bundle.json", b"{" * 1000),
    "nothing": lambda tar: None,
}


@pytest.mark.parametrize("harm", HARM)
def test_a_malicious_bundle_file_is_rejected_and_leaves_nothing(harm, tmp_path):
    inner = tmp_path / "deep" / "deeper"
    inner.mkdir(parents=True)
    file = forged(tmp_path / "evil.aenv.tar", HARM[harm])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidBundle, match=r"evil\.aenv\.tar"):
        Archive(file)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_million_entries_are_rejected_quickly(tmp_path):
    file = tmp_path / "many.aenv.tar"
    many = manifest(files=[{"path": f"{n:07}", "mode": 420, "size": 0, "blobs": []} for n in range(1_000_000)])
    forged(file, lambda tar: member(tar, "bundle.json", many))
    with pytest.raises(InvalidBundle):
        Archive(file)
    just_small_enough = manifest(
        files=[{"path": f"{n:07}", "mode": 420, "size": 0, "blobs": []} for n in range(200_000)]
    )
    forged(file, lambda tar: member(tar, "bundle.json", just_small_enough))
    with pytest.raises(InvalidBundle, match="50000"):
        Archive(file)


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_extended_headers_are_rejected(tmp_path, form):
    file = forged(tmp_path / "long.aenv.tar", lambda tar: member(tar, "x" * 5000, b""), form)
    with pytest.raises(InvalidBundle):
        Archive(file)


def test_every_truncation_and_changed_byte_is_detected(project, tmp_path):
    packed = pack(project)
    file = tmp_path / "x.aenv.tar"
    archive.write(packed, file)
    whole = file.read_bytes()
    draw = random.Random(3)
    for _ in range(150):
        at = draw.randrange(len(whole))
        changed = bytearray(whole)
        if draw.random() < 0.3:
            del changed[at:]
        else:
            changed[at] ^= 1 << draw.randrange(8)
        file.write_bytes(changed)
        target = tmp_path / "out"
        try:
            with Archive(file) as opened:
                asyncio.run(unpack(opened.bundle, opened.fetch, target))
        except InvalidBundle:
            assert not target.exists()
        else:  # a bit of padding, or of redundant JSON
            assert opened.bundle.digest() == packed.bundle.digest() or opened.bundle != packed.bundle
            shutil.rmtree(target)
