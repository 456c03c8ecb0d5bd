"""The server of a host pod, with real sandboxes."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import from_json, to_json

from aenv.client.instance_client import InstanceClient
from aenv.engines.base import EngineOptions, SandboxSpec
from aenv.engines.native.engine import NativeEngine
from aenv.engines.packed.host_memory import memory_used_and_limit
from aenv.engines.packed.host_server import HostServer
from aenv.engines.packed.received_projects import ReceivedProjects
from aenv.errors import Unauthorized
from aenv.http.client import HttpClient
from aenv.http.url import ServerUrl
from tests.conftest import run

SOURCE = b"from aenv import register_tool\n@register_tool\ndef hello() -> int: return 1\n"


@asynccontextmanager
async def a_host(folder: Path) -> AsyncIterator[HttpClient]:
    engine = NativeEngine.create(folder / "engine", EngineOptions(pool=0, listen="127.0.0.1"))
    server = HostServer(engine, ReceivedProjects(folder / "projects"), "secret")
    url = await server.open("127.0.0.1", 0)
    client = HttpClient(ServerUrl.parse(url), token="secret")
    try:
        yield client
    finally:
        client.close()
        await server.close()


def archive() -> tuple[str, bytes]:
    """Return a project's archive and its digest."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as opened:
        member = tarfile.TarInfo("env.py")
        member.size = len(SOURCE)
        opened.addfile(member, io.BytesIO(SOURCE))
    return hashlib.sha256(data.getvalue()).hexdigest(), data.getvalue()


async def request(client: HttpClient, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
    answer = await client.request(method, path, body, timeout=60)
    return answer.status, from_json(answer.body)


def start_body(name: str, digest: str, **more: Any) -> bytes:
    spec = SandboxSpec("hosted@1.0.0", Path("/elsewhere"), Path("/elsewhere/env.py"), **more)
    message = {"name": name, "project": digest, "code": "env.py"}
    from pydantic import TypeAdapter

    return to_json({**message, "spec": TypeAdapter(SandboxSpec).dump_python(spec, mode="json")})


def test_a_sandbox_is_started_called_at_its_port_and_stopped(sandboxes: None, tmp_path: Path) -> None:
    async def main() -> None:
        digest, data = archive()
        async with a_host(tmp_path) as client:
            status, answer = await request(client, "POST", "/sandboxes", start_body("one", digest))
            assert (status, answer["details"]) == (404, {"send": "project"})
            assert (await request(client, "PUT", f"/projects/{digest}", data))[0] == 200
            status, made = await request(client, "POST", "/sandboxes", start_body("one", digest))
            assert status == 200, made
            assert (await request(client, "POST", "/sandboxes", start_body("one", digest)))[1] == made  # idempotent
            instance = InstanceClient(ServerUrl.parse(f"http://127.0.0.1:{made['port']}"), token=made["token"])
            try:
                found = await instance.call("/tools/hello", {}, timeout=30)
                assert found["content"][0]["text"] == "1"
            finally:
                instance.close()
            stranger = InstanceClient(ServerUrl.parse(f"http://127.0.0.1:{made['port']}"), token="guess")
            with pytest.raises(Unauthorized):
                await stranger.call("/tools/hello", {}, timeout=30)
            stranger.close()
            assert (await request(client, "GET", "/sandboxes/one"))[0] == 200
            for _ in range(2):
                assert (await request(client, "DELETE", "/sandboxes/one"))[0] == 200
            assert (await request(client, "GET", "/sandboxes/one"))[0] == 404

    run(main())


def test_only_the_platform_is_served_and_an_archive_must_be_the_one_it_is_called(tmp_path: Path) -> None:
    async def main() -> None:
        digest, data = archive()
        async with a_host(tmp_path) as client:
            stranger = HttpClient(client.url, token="guess")
            for method, path in (("GET", "/changes/0"), ("PUT", f"/projects/{digest}"), ("DELETE", "/sandboxes/one")):
                assert (await request(stranger, method, path, b""))[0] == 401
            stranger.close()
            for name, body in ((digest, data + b"\0"), (digest, b"no archive"), ("../../etc/passwd", data)):
                assert (await request(client, "PUT", f"/projects/{name}", body))[0] == 422
            assert (await request(client, "POST", "/sandboxes", b"{}"))[0] == 422
            assert (await request(client, "GET", "/nothing"))[0] == 404
        assert not list((tmp_path / "projects").glob("*"))

    run(main())


def test_memory_is_read_from_either_version_of_control_groups(tmp_path: Path) -> None:
    assert memory_used_and_limit(tmp_path) == (0, 0)
    (tmp_path / "memory").mkdir()
    for name, text in (
        ("usage_in_bytes", "300"),
        ("limit_in_bytes", "1000"),
        ("stat", "cache 1\ntotal_inactive_file 50"),
    ):
        (tmp_path / "memory" / f"memory.{name}").write_text(text)
    assert memory_used_and_limit(tmp_path) == (250, 1000)
    for name, text in (("current", "200"), ("max", "max"), ("stat", "anon 7\ninactive_file 150\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert memory_used_and_limit(tmp_path) == (50, 0)
