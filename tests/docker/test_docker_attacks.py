"""Attacks of programs in a container on the socket over which its runtime is called."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from aenv.engines.base import Engine, SandboxRef
from aenv.engines.docker.container_body import SOCKETS
from aenv.errors import LoadError
from tests.docker.test_docker_failures import SOURCE, call, spec_of, use

pytestmark = [pytest.mark.long, pytest.mark.attack("containers")]

IMPOSTOR = f"""
import os, socket
os.path.lexists({SOCKETS!r} + "/s") and os.unlink({SOCKETS!r} + "/s")
server = socket.socket(socket.AF_UNIX)
server.bind({SOCKETS!r} + "/s")
os.chmod({SOCKETS!r} + "/s", 0o777)
server.listen()
if os.fork() == 0:
    os.setsid()
    os.dup2(os.open("/dev/null", os.O_RDWR), 1)
    os.dup2(1, 2)
    body = b'{{"success":true,"data":{{"content":[{{"type":"text","text":"impostor"}}],"is_error":false}}}}'
    while True:
        connection, _ = server.accept()
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-length: %d\\r\\n\\r\\n" % len(body) + body)
"""

LINKS = f"""
import os
os.path.lexists("{SOCKETS}/s") and os.unlink("{SOCKETS}/s")
os.symlink("{{target}}", "{SOCKETS}/s")
"""


async def python(ref: SandboxRef, source: str) -> str:
    """Run a Python program as a tool does; return what it writes."""
    return str(await call(ref, "shell", command=f"python3 - 2>&1 <<'END'\n{source}\nEND\n"))


def test_a_program_cannot_answer_in_place_of_the_runtime(engine: Callable[[], Engine], folder: Path) -> None:
    async def work(made: Engine) -> None:
        ref = await made.start(spec_of(folder))
        await python(ref, IMPOSTOR)
        assert await call(ref, "answer") == "42"
        await made.stop(ref)

    use(engine, work)


def test_a_program_cannot_lead_the_platform_to_a_socket_of_the_host(engine: Callable[[], Engine], folder: Path) -> None:
    asked: list[bytes] = []

    async def host_service(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    async def work(made: Engine) -> None:
        service = await asyncio.start_unix_server(host_service, folder / "service.sock")
        ref = await made.start(spec_of(folder))
        await python(ref, LINKS.format(target=folder / "service.sock"))
        assert await call(ref, "answer") == "42"
        await made.stop(ref)
        service.close()

    use(engine, work)
    assert asked == []


def test_code_that_is_imported_cannot_lead_the_platform_to_a_socket_of_the_host(
    engine: Callable[[], Engine], folder: Path
) -> None:
    asked: list[bytes] = []

    async def host_service(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    async def work(made: Engine) -> None:
        service = await asyncio.start_unix_server(host_service, folder / "service.sock")
        spec = spec_of(folder)
        links = LINKS.format(target=folder / "service.sock")
        (spec.project / "env.py").write_text(f"{SOURCE}\n{links}\nimport time; time.sleep(3600)\n")
        with pytest.raises(LoadError, match="socket"):
            await made.start(spec)
        service.close()

    use(engine, work)
    assert asked == []


def test_what_programs_leave_in_the_folder_of_the_socket_is_removed(engine: Callable[[], Engine], folder: Path) -> None:
    async def work(made: Engine) -> None:
        spec = spec_of(folder)
        leaves = f"os.makedirs({SOCKETS!r} + '/a/b'); os.chmod({SOCKETS!r} + '/a', 0o500)"
        (spec.project / "env.py").write_text(f"{SOURCE}\n{leaves}\n")
        ref = await made.start(spec)
        assert "PermissionError" in await python(
            ref, f"open('{SOCKETS}/d', 'w')"
        )  # the folder is one of the host: nothing limits what it takes there
        await made.stop(ref)

    use(engine, work)
