"""Folders as tars that go by: what is sent arrives, and what is made to harm does not."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import tarfile
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv.core.folders import pack, packed, unpack, unpacked
from aenv.errors import UsageError
from tests.conftest import run


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for about, data in members:
            about.size = len(data)
            tar.addfile(about, io.BytesIO(data))
    out.seek(0)
    return out


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    about = tarfile.TarInfo(name)
    about.type, about.linkname, about.mode = kind, link, mode
    return about


def test_a_folder_arrives_as_it_was(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "a" / "target"
    (source / "sub" / "empty").mkdir(parents=True)
    (source / "sub" / "ü").write_bytes(bytes(range(256)) * 5000)
    (source / "run").write_text("x")
    (source / "run").chmod(0o755)
    os.link(source / "run", source / "same")
    (source / "sub" / "link").symlink_to("../run")
    (source / ("n" * 150)).write_text("a long name")

    async def main() -> None:
        done = await unpacked(packed(source, asyncio.to_thread), target, asyncio.to_thread)
        assert (done.files, done.size) == (4, 256 * 5000 + 2 + 11)
        again = await unpacked(packed(source, asyncio.to_thread), target, asyncio.to_thread)
        assert again == done  # what is there is replaced

    run(main())
    assert (target / "sub" / "ü").read_bytes() == (source / "sub" / "ü").read_bytes()
    assert (target / "sub" / "empty").is_dir()
    assert os.readlink(target / "sub" / "link") == "../run"
    assert (target / "run").stat().st_mode & 0o777 == 0o755
    assert (target / "run").stat().st_mtime == int((source / "run").stat().st_mtime)
    assert (target / "same").read_text() == "x"
    assert len(list(target.rglob("*"))) == len(list(source.rglob("*")))


def test_one_file_becomes_a_file_or_goes_into_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    out = io.BytesIO()
    pack(tmp_path / "file", out, "other")
    for target in (tmp_path / "new", tmp_path):
        out.seek(0)
        assert unpack(out, target, may_be_file=True).files == 1
    assert (tmp_path / "new").read_text() == (tmp_path / "other").read_text() == "content"


@pytest.mark.parametrize(
    "members",
    [
        [member("../out")],
        [member("a/../../out")],
        [member("/out")],
        [member("l", tarfile.SYMTYPE, "..")],
        [member("l", tarfile.SYMTYPE, "/")],
        [member("l", tarfile.SYMTYPE, "")],
        [member("a/l", tarfile.SYMTYPE, "../../out")],
        [member("in", tarfile.DIRTYPE), member("l", tarfile.SYMTYPE, "in"), member("l/x")],
        [member("there/x")],  # a link that was there already
        [member("there", tarfile.DIRTYPE)],
        [member("h", tarfile.LNKTYPE, "../out")],
        [member("f", tarfile.FIFOTYPE)],
        [member("d", tarfile.CHRTYPE)],
        [member("", tarfile.REGTYPE)],
        [member(".", tarfile.REGTYPE)],
        [member("folder")],
    ],
    ids=lambda members: f"{members[-1].name}-{members[-1].linkname}-{members[-1].type.decode()}",
)
def test_what_leads_out_is_refused_and_nothing_is_written_there(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    (folder / "folder").mkdir(parents=True)
    (folder / "there").symlink_to(outside)
    with pytest.raises(UsageError):
        unpack(tar_of(*[(about, b"evil" if about.isreg() else b"") for about in members]), folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "outside"]
    assert list(outside.iterdir()) == []


def test_a_name_that_would_fill_the_memory_is_not_read(tmp_path: Path) -> None:
    head = member("x", tarfile.XHDTYPE)
    head.size = 1 << 40
    with pytest.raises(UsageError, match="too long"):
        unpack(io.BytesIO(head.tobuf(tarfile.GNU_FORMAT) + b"\0" * 10_000), tmp_path)


def test_a_link_that_is_there_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x").symlink_to(tmp_path / "precious")
    unpack(tar_of((member("x", mode=0o6777), b"new")), tmp_path / "folder")
    assert (tmp_path / "precious").read_text() == "mine"
    assert (tmp_path / "folder" / "x").read_text() == "new"
    assert (tmp_path / "folder" / "x").stat().st_mode & 0o7777 == 0o777  # and no right of its owner comes with it


def test_what_a_tar_does_not_carry_is_said_before_it_is_sent(tmp_path: Path) -> None:
    (tmp_path / "away").symlink_to("/etc")
    with pytest.raises(UsageError, match="leads out of the folder"):
        pack(tmp_path, io.BytesIO())
    (tmp_path / "away").unlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pipe"):
        pack(tmp_path, io.BytesIO())


def test_a_sender_who_breaks_off_and_one_who_sends_nonsense(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield tar_of((member("a"), b"x" * 100_000)).getvalue()[:50_000]
        raise ConnectionResetError("gone")

    async def nonsense() -> AsyncIterator[bytes]:
        while True:  # it is not read to its end
            yield b"nonsense" * 10_000

    async def cut() -> AsyncIterator[bytes]:
        yield tar_of((member("b"), b"x" * 100_000)).getvalue()[:50_000]

    async def main() -> None:
        with pytest.raises(ConnectionResetError):
            await unpacked(broken(), tmp_path, asyncio.to_thread)
        for stream in (nonsense(), cut()):
            with pytest.raises(UsageError, match="not a whole tar"):
                await unpacked(stream, tmp_path, asyncio.to_thread)

    run(main())


@given(st.lists(st.tuples(st.text(min_size=1, max_size=12), st.binary(max_size=2000)), max_size=4), st.data())
def test_no_bytes_whatever_write_outside_or_fail_in_another_way(
    parts: list[tuple[str, bytes]], data: st.DataObject
) -> None:
    members = [(member(name.replace("\0", "/"), data.draw(st.sampled_from([b"0", b"5", b"2", b"1"])), "../x"), content)
               for name, content in parts]  # fmt: skip
    try:
        whole = bytearray(tar_of(*members).getvalue())
    except (ValueError, UnicodeError):
        return
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.suppress(UsageError, OSError):
            unpack(io.BytesIO(bytes(whole)), Path(folder) / "in")
        assert {path.name for path in Path(folder).iterdir()} <= {"in"}
