"""Folders as streamed tars: they arrive complete, and hostile tars are refused."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import socket
import tarfile
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv.errors import UsageError
from aenv.isolation.files.tar_limits import LAST_TIME
from aenv.isolation.files.tar_streams import pack, pack_stream, unpack, unpack_stream
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
        done = await unpack_stream(pack_stream(source, asyncio.to_thread), target, asyncio.to_thread)
        assert (done.files, done.size) == (4, 256 * 5000 + 2 + 11)
        again = await unpack_stream(pack_stream(source, asyncio.to_thread), target, asyncio.to_thread)
        assert again == done  # existing files are replaced

    run(main())
    assert (target / "sub" / "ü").read_bytes() == (source / "sub" / "ü").read_bytes()
    assert (target / "sub" / "empty").is_dir()
    assert os.readlink(target / "sub" / "link") == "../run"
    assert (target / "run").stat().st_mode & 0o777 == 0o755
    assert (target / "run").stat().st_mtime == int((source / "run").stat().st_mtime)
    assert (target / "same").read_text() == "x"
    assert len(list(target.rglob("*"))) == len(list(source.rglob("*")))


def test_a_tar_of_one_file_becomes_a_file_or_goes_into_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    out = io.BytesIO()
    pack(tmp_path / "file", out, "other")
    for target in (tmp_path / "new", tmp_path):
        out.seek(0)
        assert unpack(out, target, file_name="other").files == 1
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
        [member("there/x")],  # an existing link
        [member("there", tarfile.DIRTYPE)],
        [member("h", tarfile.LNKTYPE, "../out")],
        [member("f", tarfile.FIFOTYPE)],
        [member("d", tarfile.CHRTYPE)],
        [member("", tarfile.REGTYPE)],
        [member(".", tarfile.REGTYPE)],
        [member("folder")],
        [
            member("a", tarfile.DIRTYPE),
            member("a/up", tarfile.SYMTYPE, ".."),
            member("l", tarfile.SYMTYPE, "a/up/../x"),
        ],
        [member("folder/up", tarfile.SYMTYPE, ".."), member("l", tarfile.SYMTYPE, "folder/up/../outside")],
        [member("folder/up", tarfile.SYMTYPE, ".."), member("folder/l", tarfile.SYMTYPE, "up/../../outside")],
        [member("a/b/up", tarfile.SYMTYPE, "../.."), member("l", tarfile.SYMTYPE, "a/b/up/./../outside")],
        [member("a", tarfile.SYMTYPE, "."), member("l", tarfile.SYMTYPE, "a/a/../outside")],
        [member("l", tarfile.SYMTYPE, "folder/../../outside")],
        [member("./././l", tarfile.SYMTYPE, "../outside")],
        [member("l", tarfile.SYMTYPE, "./../outside")],
        [member("l", tarfile.SYMTYPE, "folder/..")],
        [member("l", tarfile.SYMTYPE, "//etc")],
        [member("there", tarfile.SYMTYPE, "folder"), member("there/x")],
    ],
    ids=lambda members: f"{members[-1].name}-{members[-1].linkname}-{members[-1].type.decode()}",
)
@pytest.mark.attack("download")
def test_members_that_lead_out_are_refused_and_write_nothing_outside(
    tmp_path: Path, members: list[tarfile.TarInfo]
) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    (folder / "folder").mkdir(parents=True)
    (folder / "there").symlink_to(outside)
    with pytest.raises(UsageError):
        unpack(tar_of(*[(about, b"evil" if about.isreg() else b"") for about in members]), folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "outside"]
    assert list(outside.iterdir()) == []


def test_a_huge_header_is_refused(tmp_path: Path) -> None:
    head = member("x", tarfile.XHDTYPE)
    head.size = 1 << 40
    with pytest.raises(UsageError, match="too long"):
        unpack(io.BytesIO(head.tobuf(tarfile.GNU_FORMAT) + b"\0" * 10_000), tmp_path)


def test_an_existing_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x").symlink_to(tmp_path / "precious")
    unpack(tar_of((member("x", mode=0o6777), b"new")), tmp_path / "folder")
    assert (tmp_path / "precious").read_text() == "mine"
    assert (tmp_path / "folder" / "x").read_text() == "new"
    assert (tmp_path / "folder" / "x").stat().st_mode & 0o7777 == 0o777  # without setuid and setgid


def test_packing_an_unsupported_entry_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "away").symlink_to("/etc")
    with pytest.raises(UsageError, match="leads out of the folder"):
        pack(tmp_path, io.BytesIO())
    (tmp_path / "away").unlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pipe"):
        pack(tmp_path, io.BytesIO())


def test_an_interrupted_or_invalid_stream_is_an_error(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield tar_of((member("a"), b"x" * 100_000)).getvalue()[:50_000]
        raise ConnectionResetError("gone")

    async def nonsense() -> AsyncGenerator[bytes]:
        while True:  # not read to its end
            yield b"nonsense" * 10_000

    async def cut() -> AsyncGenerator[bytes]:
        yield tar_of((member("b"), b"x" * 100_000)).getvalue()[:50_000]

    async def main() -> None:
        with pytest.raises(ConnectionResetError):
            await unpack_stream(broken(), tmp_path, asyncio.to_thread)
        for make in (nonsense, cut):
            async with contextlib.aclosing(make()) as stream:  # else closing it may still be pending when the loop ends
                with pytest.raises(UsageError, match="not a complete tar"):
                    await unpack_stream(stream, tmp_path, asyncio.to_thread)

    run(main())


@given(st.lists(st.tuples(st.text(min_size=1, max_size=12), st.binary(max_size=2000)), max_size=4), st.data())
def test_arbitrary_bytes_neither_write_outside_nor_raise_other_errors(
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


def pax(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", **records: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        about = member(name, kind, link)
        about.pax_headers = {key.replace("__", "."): value for key, value in records.items()}
        tar.addfile(about)
    return out.getvalue()


@pytest.mark.attack("download")
@pytest.mark.parametrize("time", ["nan", "inf", "-inf", "-1", "-1e300", "1e300", "9223372036854775808", "1e18"])
def test_extreme_modification_times_are_clamped(tmp_path: Path, time: str) -> None:
    assert unpack(io.BytesIO(pax("x", mtime=time)), tmp_path).files == 1
    assert 0 <= (tmp_path / "x").stat().st_mtime <= LAST_TIME


@pytest.mark.attack("download")
@pytest.mark.parametrize(
    "data",
    [
        pax("x", path="a\0b"),
        pax("x" * 300),
        pax("/".join("d" * 300)),
        pax("/".join("d" * 20_000)),
        pax("l", tarfile.SYMTYPE, "x" * 5000),
        pax("l", tarfile.SYMTYPE, "x", linkpath="a\0b"),
        pax("x", size="-1"),
        pax("x", size="-512"),
        pax("x", size="99999999999999999999"),
        pax("x", size="x"),
        pax("x", GNU__sparse__map="0,1", GNU__sparse__size="1"),
        pax("x", GNU__sparse__size="1", GNU__sparse__numblocks="1"),
        pax("x", GNU__sparse__major="1", GNU__sparse__minor="0", GNU__sparse__realsize="1"),
        member("x", tarfile.GNUTYPE_SPARSE).tobuf(tarfile.GNU_FORMAT) + bytes(10_000),
        member("x", tarfile.XHDTYPE).tobuf() * 2000 + bytes(1024),
        member("x", tarfile.GNUTYPE_LONGNAME).tobuf(tarfile.GNU_FORMAT) * 2000 + bytes(1024),
        pax("x")[:700],
        b"\x80" * 2048,
        b"",
    ],
)
def test_an_invalid_tar_raises_only_usage_errors(tmp_path: Path, data: bytes) -> None:
    with contextlib.suppress(UsageError):
        unpack(io.BytesIO(data), tmp_path / "in")
    assert {path.name for path in tmp_path.iterdir()} <= {"in"}
    assert all(path.stat().st_size == 0 for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.attack("download")
def test_a_single_file_gets_the_requested_name(tmp_path: Path) -> None:
    unpack(tar_of((member(".bashrc"), b"evil")), tmp_path, file_name="report.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["report.txt"]


def test_links_that_stay_inside_are_kept(tmp_path: Path) -> None:
    links = {
        "a/b/up": "../..",
        "a/same": ".",
        "a/b/near": "../c/d",
        "top": "a/b",
        "dangling": "nothing/here",
        "x": "./a",
    }
    unpack(tar_of(*[(member(name, tarfile.SYMTYPE, target), b"") for name, target in links.items()]), tmp_path)
    assert {name: os.readlink(tmp_path / name) for name in links} == links


@pytest.mark.attack("download")
def test_unsupported_entries_do_not_keep_a_folder_from_being_packed(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").joinpath(*["d"] * 300).mkdir(parents=True)
    (source / "good").write_text("good")
    (source / "away").symlink_to("/etc")
    (source / "deep" / "inner").symlink_to("d/../../..")
    os.mkfifo(source / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(source, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
    (source / "z").mkdir()
    (source / "z" / "last").write_text("last")
    left: list[str] = []
    out = io.BytesIO()
    pack(source, out, on_skipped=lambda name, why: left.append(name))
    out.seek(0)
    unpack(out, tmp_path / "target")
    assert (tmp_path / "target" / "good").read_text() == "good"
    assert (tmp_path / "target" / "z" / "last").read_text() == "last"
    assert sorted(name[:10] for name in left) == ["away", "deep/d/d/d", "deep/inner", "pipe", "socket"]
    with pytest.raises(UsageError):
        pack(source, io.BytesIO())


@pytest.mark.attack("download")
def test_a_file_that_shrinks_while_it_is_packed_is_padded(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a" * 3_000_000)
    (tmp_path / "b").write_text("b")

    class Shrinking(io.BytesIO):
        def write(self, data: object) -> int:
            os.truncate(tmp_path / "a", 1000)
            return super().write(data)  # type: ignore[arg-type]

    out = Shrinking()
    pack(tmp_path, out)
    out.seek(0)
    target = tmp_path / "target"
    unpack(out, target)
    assert (target / "a").stat().st_size == 3_000_000
    assert (target / "b").read_text() == "b"
