"""Shells, commands and ports of an instance across users of a platform, and connections that are dropped halfway."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit

import pytest

from aenv.errors import AEnvError
from aenv.http import websocket
from aenv.sdk.environment import Environment
from tests.attacks.ledger import Attacks
from tests.conftest import run
from tests.inside.conftest import Place
from tests.platform.parts import Served

TCP = b"connection: Upgrade\r\nupgrade: tcp\r\n\r\n"
MISSING = "inside-00000000"


def message(answer: bytes) -> str:
    return str(json.loads(answer.rpartition(b"\r\n\r\n")[2])["message"])


async def opened(url: str, path: str, token: str | None, upgrade: bytes, header: str = "") -> tuple[int, bytes]:
    """Ask for an upgrade; return the status and what follows the status line."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    given = f"authorization: Bearer {token}\r\n" if token is not None else ""
    writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\n{given}{header}".encode() + upgrade)
    try:
        async with asyncio.timeout(30):
            status = int((await reader.readline()).split()[1])
            head = await reader.readuntil(b"\r\n\r\n")
            return status, b"" if status == 101 else head + await reader.read(4096)
    finally:
        writer.close()


def test_another_user_opens_no_shell_and_no_port(served: tuple[Served, str], attacks: Attacks) -> None:
    platform, ann = served
    bob = platform.token("bob")

    async def main() -> None:
        async with Environment("inside", aenv_url=platform.url, api_key=ann) as hers:
            id = str(hers.instance_id)
            paths = [f"/instance/{id}/exec", f"/instance/{id}/port/8000", f"/instance/{id}/port/8081"]
            upgrades = {"websocket": websocket.client_headers()[1], "tcp": TCP}
            for path in paths:
                for kind, upgrade in upgrades.items():
                    status, said = await opened(platform.url, path, bob, upgrade)
                    missing = await opened(platform.url, path.replace(id, MISSING), bob, upgrade)
                    same = (status, message(said).replace(id, MISSING)) == (missing[0], message(missing[1]))
                    held = status in (403, 404) and same  # as if she had none
                    attacks.record("tenants", f"{kind} {path} by another user: {status}", held=held)
                    for token in (None, f"{bob}x"):
                        status, _ = await opened(platform.url, path, token, upgrade)
                        attacks.record("tenants", f"{kind} {path} without a valid token: {status}", held=status == 401)
            header = f"AEnvCore-EnvInstance-ID: {id}\r\n"
            for path in ("/exec", "/port/8000"):
                for upgrade in upgrades.values():
                    status, _ = await opened(platform.data_url, path, bob, upgrade, header)
                    attacks.record("tenants", f"{path} by its header: {status}", held=status in (403, 404))
            with pytest.raises(AEnvError):
                await Environment("inside", aenv_url=platform.url, api_key=bob, instance_id=id).initialize()
            status, _ = await opened(platform.url, paths[0], ann, upgrades["websocket"])
            assert status == 101, "her own"

    run(main())
    attacks.all_held()


@pytest.mark.attack("tenants")
def test_connections_that_are_dropped_halfway_leave_no_process_behind(remote: Place) -> None:
    async def dropped(env: Environment, number: int) -> None:
        process = asyncio.ensure_future(env.exec(["sleep", "600"], stream=True))
        for _ in range(number):
            await asyncio.sleep(0)
        process.cancel()
        [found] = await asyncio.gather(process, return_exceptions=True)
        if not isinstance(found, BaseException):
            await found.kill()

    async def main() -> None:
        async with remote.environment() as env:
            await asyncio.gather(*(dropped(env, number) for number in range(0, 60, 2)))
            async with asyncio.timeout(60):
                while "sleep" in (await env.exec("cat /proc/[0-9]*/comm")).stdout.split():  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert (await env.call_tool("echo", {"text": "x"})).data == "x"

    run(main())
