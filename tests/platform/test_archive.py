"""Upload and download of folders through the gateway, streamed and never held in memory as a whole."""

from __future__ import annotations

import asyncio
import io
import os
import resource
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from aenv.errors import Forbidden, NotFound, UsageError
from aenv.http.url import ServerUrl
from tests.conftest import fetch, run
from tests.platform.parts import Served

Tokens = Callable[..., str]
LARGE = 96 << 20
FLAT = 24 << 20
"""Bytes by which the memory of each process may grow while a large file passes through."""


def peak(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def test_a_large_folder_goes_in_and_out_while_memory_stays_flat(
    platform: Served, tokens: Tokens, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with (source / "large").open("wb") as file:
        file.truncate(LARGE)
        file.seek(LARGE - 3)
        file.write(b"end")
    (source / "link").symlink_to("large")
    (tmp_path / "single").write_bytes(b"x" * (16 << 20) + b"end")

    async def main() -> None:
        async with platform.environment(token=tokens("ann")) as env:
            await env.call_tool("increment")
            server = psutil.Process(platform.process.pid)
            processes = [server.pid, *(child.pid for child in server.children(recursive=True))]
            before = {pid: peak(pid) for pid in processes}
            own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            await env.upload(source, "/tmp/there")
            await env.upload(tmp_path / "single", "/tmp/alone")
            assert (await env.exec("tail -c 3 /tmp/there/link /tmp/alone")).stdout.count("end") == 2
            await env.download_to("/tmp/there", tmp_path / "back")
            await env.download_to("/tmp/alone", tmp_path / "file")
            for pid in processes:
                assert peak(pid) - before[pid] < FLAT, psutil.Process(pid).cmdline()
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - own < FLAT

    run(main())
    assert (tmp_path / "file").read_bytes() == (tmp_path / "single").read_bytes()
    assert (tmp_path / "back" / "large").stat().st_size == LARGE
    with (tmp_path / "back" / "large").open("rb") as file:
        file.seek(-3, os.SEEK_END)
        assert file.read() == b"end"
    assert os.readlink(tmp_path / "back" / "link") == "large"


def test_invalid_uploads_and_downloads_are_refused_with_a_reason(
    platform: Served, tokens: Tokens, tmp_path: Path
) -> None:
    async def main() -> None:
        async with platform.environment(token=tokens("ann")) as env:
            (tmp_path / "away").symlink_to("/etc/passwd")
            with pytest.raises(UsageError, match="leads out of the folder"):
                await env.upload(tmp_path, "/tmp/x")
            (tmp_path / "away").unlink()
            with pytest.raises(NotFound, match="No such file"):
                await env.download_to("/nowhere", tmp_path / "x")
            with pytest.raises(Forbidden, match=r"Permission|Read-only"):
                await env.upload(tmp_path, "/usr/x")
            # Links that the environment's code has made do not lead out of the target folder on this machine.
            await env.exec("mkdir /tmp/evil; ln -s /etc/passwd /tmp/evil/link; mkfifo /tmp/evil/p; echo 1 >/tmp/evil/z")
            await env.download_to("/tmp/evil", tmp_path / "evil")
            assert (await env.call_tool("increment")).data == 1

    run(main())
    assert [path.name for path in tmp_path.glob("evil/*")] == ["z"]  # and the other files are still downloaded


def test_malicious_tars_and_other_users_are_refused_on_both_routes(platform: Served, tokens: Tokens) -> None:
    evil = io.BytesIO()
    with tarfile.open(fileobj=evil, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("../../etc/evil"))
    status, body = fetch(
        platform.url, "/env-instance", {"envName": "counter"}, headers={"authorization": f"Bearer {tokens('ann')}"}
    )
    name = body["data"]["id"]
    own = {"authorization": f"Bearer {tokens('ann')}"}
    for path in (f"/env-instance/{name}/archive?path=/tmp", f"/instance/{name}/archive?path=/tmp"):
        status, body = fetch(platform.url, path, evil.getvalue(), method="PUT", headers=own)
        assert (status, body["code"]) in ((422, "invalid_arguments"), (400, "invalid_arguments")), body
        assert "leads out" in body["error"]
        status, body = fetch(platform.url, path, b"not a tar", method="PUT", headers=own)
        assert "not a complete tar" in body["error"]
        assert fetch(platform.url, path, b"x", method="PUT")[0] == 401
        other_user = {"authorization": f"Bearer {tokens('bob')}"}
        assert fetch(platform.url, path, b"x", method="PUT", headers=other_user)[0] in (403, 404)
        assert fetch(platform.url, path, headers=other_user)[0] in (403, 404)
    fetch(platform.url, f"/env-instance/{name}", method="DELETE", headers=own)


@pytest.mark.parametrize(
    "path", ["/env-instance/x/archive", "/instance/x/archive", "/env-instance/x/y/archive", "/archive"]
)
def test_an_endless_body_does_not_fill_the_servers_memory(platform: Served, path: str) -> None:
    """Without a token it is refused while it is sent; on an unknown route it is refused for its length."""
    url = ServerUrl.parse(platform.url)
    with socket.create_connection((url.host, url.port), 30) as wire:
        head = f"PUT {path}?path=/tmp HTTP/1.1\r\nhost: localhost\r\ncontent-length: {1 << 40}\r\n\r\n"
        wire.sendall(head.encode() + b"x" * 100_000)
        assert wire.recv(12) in (b"HTTP/1.1 401", b"HTTP/1.1 413")


def test_a_cancelled_transfer_ends_on_both_sides(platform: Served, tokens: Tokens, tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 33)  # more than the sandbox's disk and the test's time allow

    async def main() -> None:
        async with platform.environment(token=tokens("ann")) as env:
            sending = asyncio.create_task(env.upload(tmp_path / "large", "/tmp/large"))
            while not (await env.exec("test -s /tmp/large && echo yes")).stdout:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            size = -1
            while size != (now := int((await env.exec("stat -c %s /tmp/large")).stdout)):
                size = now
                await asyncio.sleep(0.2)
            await env.exec("truncate -s 8G /tmp/sparse")
            receiving = asyncio.create_task(env.download_to("/tmp/sparse", tmp_path / "back"))
            while not (tmp_path / "back").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            receiving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiving
            own = {"authorization": f"Bearer {tokens('ann')}"}
            status, body = await asyncio.to_thread(
                fetch, platform.url, f"/instance/{env.instance_id}/archive", headers=own
            )
            assert (status // 100, body["code"]) == (4, "invalid_arguments")
            assert "path" in body["error"]

    run(main())
