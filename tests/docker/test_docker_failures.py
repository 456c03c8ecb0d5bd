"""Failures of containers are told by their cause, and nothing is left behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from aenv.client.instance_client import InstanceClient
from aenv.engines.base import Engine, Exit, SandboxRef, SandboxSpec
from aenv.engines.docker.container_engine import DockerEngine
from aenv.engines.docker.docker_api import DockerApi
from aenv.engines.docker.docker_settings import DockerSettings
from aenv.errors import AEnvError, ImageUnavailable, Unavailable
from aenv.http.url import ServerUrl
from aenv.isolation.limits.cgroups import Limits
from tests.docker import image

pytestmark = pytest.mark.long

SOURCE = """
import os, pathlib, socket, subprocess, sys
from aenv import private, register_tool

@register_tool
def answer() -> str:
    return private("answer.txt").read_text()

@register_tool
def shell(command: str) -> str:
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True)
    return done.stdout + done.stderr

@register_tool
def eat() -> int:
    kept = []
    while True:
        kept.append(b"x" * (1 << 22))

@register_tool
def addresses() -> list[str]:
    return [name for _, name in socket.if_nameindex()]
"""


def spec_of(folder: Path, **more: Any) -> SandboxSpec:
    project = folder / "project"
    (project / "private").mkdir(parents=True, exist_ok=True)
    (project / "env.py").write_text(SOURCE)
    (project / "private" / "answer.txt").write_text("42")
    return SandboxSpec("failing@1.0.0", project, project, **more)


def use(engine: Callable[[], Engine], work: Callable[[Engine], Awaitable[None]]) -> None:
    async def main() -> None:
        made = engine()
        try:
            await work(made)
        finally:
            await made.close()

    asyncio.run(asyncio.wait_for(main(), 100))


async def call(ref: SandboxRef, tool: str, **arguments: Any) -> Any:
    client = InstanceClient(ServerUrl.parse(ref.data_url), token=ref.token)
    try:
        data = await client.call(f"/tools/{tool}", arguments, timeout=60)
    finally:
        client.close()
    return data["content"][0]["text"]


async def end_of(engine: Engine, ref: SandboxRef) -> Exit:
    while (ended := await engine.poll(ref)) is None:  # noqa: ASYNC110 - bounded by `use`
        await asyncio.sleep(0.02)
    return ended


def test_an_agents_programs_see_no_network_no_private_file_and_cannot_change_the_code(
    engine: Callable[[], Engine], tmp_path: Path
) -> None:
    async def work(made: Engine) -> None:
        ref = await made.start(spec_of(tmp_path))
        assert await call(ref, "answer") == "42"
        assert await call(ref, "addresses") == '["lo"]'
        said = await call(ref, "shell", command="id -u; cat /app/private/* /.withheld/private/* /.project/private/*")
        assert said.startswith("10001\n")
        assert "42" not in said
        assert "denied" in (await call(ref, "shell", command="echo x >> /.project/env.py")).lower()
        assert await call(ref, "shell", command="echo x > /app/mine; cat /app/mine") == "x\n"
        assert "AENV_TOKEN" not in await call(ref, "shell", command="env; cat /proc/1/environ")

    use(engine, work)


def test_an_instance_over_its_memory_limit_has_ended_by_itself(engine: Callable[[], Engine], tmp_path: Path) -> None:
    async def work(made: Engine) -> None:
        ref = await made.start(spec_of(tmp_path, limits=Limits(memory=128 << 20)))
        with pytest.raises(AEnvError):
            await call(ref, "eat")
        assert (await end_of(made, ref)).cause == "out_of_memory"

    use(engine, work)


def test_a_container_that_is_killed_or_removed_from_outside_is_an_infra_fault(
    engine: Callable[[], Engine], container_socket: str, tmp_path: Path
) -> None:
    async def work(made: Engine) -> None:
        api = DockerApi(container_socket)
        try:
            killed, removed = await asyncio.gather(*(made.start(spec_of(tmp_path)) for _ in range(2)))
            await api.request("POST", f"/containers/{killed.id}/kill", b"")
            await api.remove(removed.id)
        finally:
            api.close()
        for ref in (killed, removed):
            assert (await end_of(made, ref)).fault == "infra"

    use(engine, work)


def test_an_image_that_cannot_be_pulled_is_reported_with_its_name(engine: Callable[[], Engine], tmp_path: Path) -> None:
    async def work(made: Engine) -> None:
        with pytest.raises(ImageUnavailable, match="localhost:1/none:1"):
            await made.start(spec_of(tmp_path, image="localhost:1/none:1"))
        assert [ref async for ref in made.running()] == []

    use(engine, work)


def test_a_daemon_that_does_not_run_is_reported_with_what_to_do(tmp_path: Path) -> None:
    settings = DockerSettings(socket=str(tmp_path / "none.sock"), image=image.NAME)

    async def work(made: Engine) -> None:
        with pytest.raises(Unavailable, match=r"no container engine answers at .*none\.sock") as caught:
            await made.start(spec_of(tmp_path))
        assert "DOCKER_HOST" in caught.value.details["hint"]

    use(lambda: DockerEngine(tmp_path / "engine", settings), work)


KILLED = """
import asyncio, os, sys
from pathlib import Path
from aenv.engines.docker.container_engine import DockerEngine
from aenv.engines.docker.docker_settings import DockerSettings
from tests.docker.test_docker_failures import spec_of

async def main():
    engine = DockerEngine(Path(sys.argv[2]) / "killed", DockerSettings(socket=sys.argv[1], image=sys.argv[3]))
    print((await engine.start(spec_of(Path(sys.argv[2])))).id, flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


def test_containers_of_a_killed_server_are_removed_by_the_next_one(
    engine: Callable[[], Engine], container_socket: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", KILLED, container_socket, str(tmp_path), image.NAME]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=100, cwd=Path(__file__).parents[2])
    orphan = done.stdout.strip()
    assert done.returncode == -9

    async def names() -> list[str]:
        api = DockerApi(container_socket)
        try:
            return [each["Names"][0].lstrip("/") for each in await api.containers(**{"aenv.server": ""})]
        finally:
            api.close()

    async def work(made: Engine) -> None:
        assert await names() == [orphan]
        ref = await made.start(spec_of(tmp_path))
        assert await names() == [ref.id]

    use(engine, work)
