"""TCP ports inside an instance, forwarded to this machine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess

import pytest

from aenv.errors import InvalidUse
from tests.conftest import run
from tests.inside.conftest import Place

SERVER = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    connection, _ = listener.accept()
    while data := connection.recv(65536):
        connection.sendall(data.upper())
    connection.close()
"""


async def echoed(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        return await reader.readexactly(len(data))
    finally:
        writer.close()
        await writer.wait_closed()


def test_a_port_of_an_instance_is_reached_on_this_machine(place: Place) -> None:
    async def main() -> None:
        async with place.environment() as env:
            server = await env.exec(["python3", "-c", SERVER], stream=True)
            port = int((await server.read()).text)  # type: ignore[union-attr]
            async with env.forward(port) as forwarded:
                assert await echoed(forwarded.port, b"\0raw bytes\xff") == b"\0RAW BYTES\xff"
                assert len(await echoed(forwarded.port, b"x" * 3_000_000)) == 3_000_000
                with pytest.raises(InvalidUse, match="cannot listen"):
                    async with env.forward(port, forwarded.port):
                        pass
            async with env.forward(1) as closed:  # nothing listens there
                with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                    await echoed(closed.port, b"x")

    run(main())


def test_the_cli_forwards_ports_until_ctrl_c(place: Place) -> None:
    async def main() -> None:
        async with place.environment() as env:
            server = await env.exec(["python3", "-c", SERVER], stream=True)
            port = int((await server.read()).text)  # type: ignore[union-attr]
            name = (await env.get_env_info())["instance_id"]
            words = place.command("instance", "forward", name, f":{port}")
            with subprocess.Popen(
                words, env={**os.environ, **place.variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            ) as process:
                assert process.stdout is not None
                line = (await asyncio.to_thread(process.stdout.readline)).decode()
                assert line.endswith(f" -> {port}\n")
                assert await echoed(int(line.split()[0].rpartition(":")[2]), b"abc") == b"ABC"
                process.send_signal(signal.SIGINT)
                await asyncio.to_thread(process.communicate)
                assert process.returncode == 130

    run(main())
    assert b"invalid port" in place.aenv("instance", "forward", "x", "0", code=2).stderr
