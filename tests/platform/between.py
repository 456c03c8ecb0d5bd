"""A client, the gateway and a raw server in place of an instance, in one process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from aenv.engines.base import Capabilities, Engine, Exit, SandboxRef, SandboxSpec
from aenv.http.server import HttpServer
from aenv.platform.access.platform_tokens import OWNER, Allowance, Authenticator, Caller
from aenv.platform.app import PlatformApp
from aenv.platform.gateway.gateway import Gateway
from aenv.platform.instances.lifecycle import Instances
from aenv.platform.instances.requests.env_sources import Sources
from aenv.project.locate import Located
from aenv.schema.instances import EnvInstanceCreateRequest

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class OneEngine(Engine):
    """An engine whose sandboxes are all the same raw server."""

    capabilities = Capabilities(networks=frozenset(("loopback",)))

    def __init__(self, uds: str) -> None:
        self.uds = uds
        self.exit: Exit | None = None

    async def start(self, spec: SandboxSpec) -> SandboxRef:
        return SandboxRef("one", f"unix:{self.uds}", "inner-token")

    async def poll(self, ref: SandboxRef) -> Exit | None:
        return self.exit

    async def stop(self, ref: SandboxRef) -> None:
        return

    async def running(self) -> AsyncIterator[SandboxRef]:
        return
        yield

    async def close(self) -> None:
        return


class NoSources(Sources):
    async def find(self, wish: EnvInstanceCreateRequest, caller: Caller = OWNER) -> Located:
        return Located(Path("/"), Path("/"), None)


class Between:
    """A client's end of a connection through the gateway."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, engine: OneEngine, name: str
    ) -> None:
        self.reader, self.writer, self.engine, self.name = reader, writer, engine, name

    def send(self, head: str, body: bytes = b"") -> None:
        text = f"{head}\r\nhost: localhost\r\nAEnvCore-EnvInstance-ID: {self.name}\r\n"
        self.writer.write(text.encode() + b"\r\n" + body)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return int(head[0].split()[1]), headers, body


@contextlib.asynccontextmanager
async def between(folder: Path, talk: Talk) -> AsyncIterator[Between]:
    """A client, the gateway, and a raw server in place of an instance."""
    uds = str(folder / "i.sock")
    talking: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talking.add(task)
        try:
            await talk(reader, writer)
        finally:
            writer.close()
            talking.discard(task)

    inner = await asyncio.start_unix_server(serve, uds)
    engine = OneEngine(uds)
    instances = Instances(engine, NoSources(), direct=False)
    authenticator = Authenticator(None, Allowance(), only_loopback=True)
    gateway = Gateway(instances, authenticator)
    app = PlatformApp(instances, authenticator=authenticator, gateway=gateway)
    outer = HttpServer(app, max_body=1 << 26, stream_over=1 << 16)
    outer.listen_at(str(folder / "o.sock"))
    made = await instances.create(EnvInstanceCreateRequest(envName="x"))
    reader, writer = await asyncio.open_unix_connection(str(folder / "o.sock"))
    try:
        yield Between(reader, writer, engine, made.id)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        await instances.delete(made.id) if instances.peek(made.id) else None
        await outer.close(0)
        gateway.close()
        inner.close()
        for task in list(talking):
            task.cancel()
        await asyncio.gather(*talking, return_exceptions=True)


async def head_of(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")
