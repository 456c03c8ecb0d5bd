"""Files of an instance: list, stat, read, write, remove, watch; in the SDK, the CLI and over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest

from aenv.errors import EnvironmentError, Forbidden, InvalidArguments, NotFound
from aenv.schema.inside import FileEvent
from aenv.sdk.inside.instance_files import Watch
from tests.conftest import run
from tests.inside.conftest import Place


@pytest.mark.long
def test_files_are_written_listed_described_and_removed(place: Place) -> None:
    async def main() -> None:
        async with place.environment() as env:
            files = env.files
            await files.write("/tmp/a/b/text", "hällo")
            await env.exec("cd /tmp/a; ln -s b/text link; chmod 600 b/text; mkfifo pipe")
            listed = {each.path: (each.type, each.target) for each in await files.list("/tmp/a", depth=2)}
            assert listed == {
                "/tmp/a/b": ("folder", None), "/tmp/a/b/text": ("file", None), "/tmp/a/link": ("link", "b/text"),
                "/tmp/a/pipe": ("other", None),
            }  # fmt: skip
            about = await files.stat("/tmp/a/b/text")
            assert (about.type, about.size, about.mode) == ("file", 6, "600")
            assert await files.read_text("/tmp/a/link") == "hällo"
            assert [each.path for each in await files.list()] == ["./config.json", "./src"]
            with pytest.raises(InvalidArguments, match="not empty"):
                await files.remove("/tmp/a")
            await files.remove("/tmp/a/link")
            assert await files.exists("/tmp/a/b/text")
            await files.remove("/tmp/a", recursive=True)
            assert not await files.exists("/tmp/a")
            await files.make_folder("/tmp/x/y")
            await files.make_folder("/tmp/x/y")
            assert (await files.stat("/tmp/x/y")).type == "folder"
            for wrong in (files.read("/nowhere"), files.stat("/nowhere"), files.list("/nowhere"),
                          files.remove("/nowhere")):  # fmt: skip
                with pytest.raises(NotFound, match="No such file"):
                    await wrong

    run(main())


def test_large_files_are_read_whole(place: Place) -> None:
    async def main() -> None:
        async with place.environment() as env:
            await env.exec("head -c 30000001 /dev/zero > /tmp/large")
            assert len(await env.files.read("/tmp/large")) == 30_000_001

    run(main())


def test_files_that_would_block_or_never_end_are_refused(place: Place) -> None:
    async def main() -> None:
        async with place.environment() as env:
            await env.exec("mkfifo /tmp/pipe; ln -s /dev/zero /tmp/zero; ln -s loop /tmp/loop; mkdir /tmp/folder")
            for path in ("/tmp/pipe", "/tmp/zero", "/dev/zero", "/tmp/loop", "/tmp/folder"):
                with pytest.raises(InvalidArguments):
                    await env.files.read(path)
            for path in ("/tmp/pipe", "/dev/full", "/tmp/folder"):
                with pytest.raises((InvalidArguments, Forbidden)):
                    await env.files.write(path, "x")
            with pytest.raises(Forbidden):
                await env.files.write("/usr/bin/x", "x")
            with pytest.raises((Forbidden, InvalidArguments)):
                await env.files.remove("/", recursive=True)
            await env.exec("cd /tmp/folder; touch $(seq 101)")
            with pytest.raises(InvalidArguments, match="over 100 entries"):
                await env.files.list("/tmp/folder", limit=100)
            await env.exec(r"touch /tmp/folder/$(printf '\377')")
            assert "/tmp/folder/�" in [each.path for each in await env.files.list("/tmp/folder")]

    run(main())


def test_no_path_leads_to_the_host(place: Place, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")

    async def main() -> None:
        async with place.environment() as env:
            await env.exec(
                f"ln -s {secret} /tmp/link; ln -s /proc/1/root/{secret} /tmp/root; ln -s {tmp_path} /tmp/dir"
            )
            for path in (str(secret), "/tmp/link", "/tmp/root", "/tmp/dir/secret", f"/app/../../..{secret}",
                         f"/proc/1/root{secret}", f"/proc/self/cwd/../{secret}"):  # fmt: skip
                with pytest.raises((NotFound, Forbidden, InvalidArguments)):
                    await env.files.read(path)
            with pytest.raises((NotFound, Forbidden, InvalidArguments)):
                await env.files.list("/tmp/dir")
            await env.exec("ln -s /proc/self /tmp/self; ln -s /proc/self/fd /tmp/fd")
            for path in ("/proc/self/maps", "/proc/self/fd/1", "/proc/1/maps", "/tmp/self/maps", "/tmp/fd/1",
                         "/dev/fd/1", "/dev/stdout", "/tmp/../proc/self/maps"):  # fmt: skip
                for attempt in (env.files.read(path), env.files.write(path, "x"), env.files.stat(path)):
                    with pytest.raises((Forbidden, InvalidArguments, NotFound)):
                        await attempt
            with pytest.raises(Forbidden, match="below /proc"):
                await env.download_to("/tmp/self", tmp_path / "copy")
            with pytest.raises(Forbidden, match="below /proc"):
                await env.files.list("/tmp/fd")

    run(main())


async def following(changes: Watch, last: tuple[str, str]) -> list[tuple[str, str]]:
    """Return the changes up to one of them."""
    found: list[tuple[str, str]] = []
    async for change in changes:
        found.append((change.type, change.path))
        if found[-1] == last:
            break
    return found


@pytest.mark.parametrize("polled", [False, True])
def test_changes_are_reported_with_inotify_and_without(place: Place, polled: bool) -> None:
    take_all = (
        "import ctypes, time\nlibc = ctypes.CDLL(None)\nwhile libc.inotify_init1(0) >= 0: pass\n"
        "print('none left', flush=True)\ntime.sleep(600)"
    )

    async def main() -> None:
        async with place.environment() as env:
            if polled:
                taking = await env.exec(["python3", "-c", take_all], background=True)
                assert (await taking.read()).text == "none left\n"  # type: ignore[union-attr]
                await taking.close()
            await env.files.write("/tmp/w/first", "1")
            async with env.files.watch("/tmp/w", recursive=True) as changes:
                await env.exec("echo 2 >> /tmp/w/first")
                assert await following(changes, ("modified", "/tmp/w/first")) == [("modified", "/tmp/w/first")]
                await env.exec("mkdir /tmp/w/new; echo 3 > /tmp/w/new/second")
                found = await following(changes, ("created", "/tmp/w/new/second"))
                assert ("created", "/tmp/w/new") in found
                await env.exec("mv /tmp/w/first /tmp/w/moved; rm -r /tmp/w/new")
                found = await following(changes, ("removed", "/tmp/w/new"))
                assert {("removed", "/tmp/w/first"), ("created", "/tmp/w/moved")} <= set(found)
            with pytest.raises(NotFound):
                async with env.files.watch("/nowhere"):
                    pass

    run(main())


@pytest.mark.long
def test_the_cli_works_with_files(place: Place, tmp_path: Path) -> None:
    async def main() -> None:
        async with place.environment() as env:
            name = (await env.get_env_info())["instance_id"]

            def files(command: str, *words: str, **options: object) -> bytes:
                out: bytes = place.aenv("instance", "files", command, name, *words, **options).stdout  # type: ignore[arg-type]
                return out

            def check() -> None:
                files("put", "/tmp/f/one", stdin=b"\x1bone")
                (tmp_path / "two").write_text("two")
                files("put", "/tmp/f/two", str(tmp_path / "two"))
                assert files("cat", "/tmp/f/one") == b"\x1bone"
                assert [each["path"] for each in json.loads(files("ls", "/tmp/f", "-o", "json"))] == [
                    "/tmp/f/one", "/tmp/f/two",
                ]  # fmt: skip
                assert b"file" in files("stat", "/tmp/f/one")
                files("get", "/tmp/f", str(tmp_path / "back"))
                assert (tmp_path / "back" / "two").read_text() == "two"
                files("mkdir", "/tmp/f/new")
                assert b"/tmp/f/new/" in files("ls", "-r", "/tmp/f")
                files("rm", "-r", "/tmp/f")
                files("stat", "/tmp/f", code=1)

            await asyncio.to_thread(check)
            await env.files.make_folder("/tmp/f")
            words = place.command("instance", "files", "watch", name, "/tmp/f", "-o", "json")
            with subprocess.Popen(words, env={**os.environ, **place.variables}, stdout=subprocess.PIPE) as process:
                try:
                    assert process.stdout is not None
                    reading = asyncio.ensure_future(asyncio.to_thread(process.stdout.readline))
                    number = 0
                    while not reading.done():  # the watch begins some time after the command
                        number += 1
                        await env.files.write(f"/tmp/f/{number}", "")
                        await asyncio.wait({reading}, timeout=0.1)
                    assert FileEvent.model_validate_json(reading.result()).path.startswith("/tmp/f/")
                finally:
                    process.kill()

    run(main())


def test_a_hostile_answer_is_an_error_and_not_believed() -> None:
    from aenv.sdk.inside.instance_files import events_in, file_info

    class Endless:
        def __aiter__(self) -> Endless:
            return self

        async def __anext__(self) -> bytes:
            return b"x" * 10_000

    async def main() -> None:
        with pytest.raises(EnvironmentError, match="over 65536 bytes"):
            await anext(events_in(Endless()))

    run(main())
    with pytest.raises(EnvironmentError, match="invalid description"):
        file_info({"path": 3})
