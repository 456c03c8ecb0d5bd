"""Egress proxy: an HTTP and SOCKS5 proxy process through which sandboxes reach the hosts on their allow list.

A sandbox's network namespace has only a loopback and no route out. The sandbox opens a listening socket on it and
passes it to this process, so connections to it are accepted outside. Names are resolved here, and the proxy connects to
the very address that it has checked. One process serves all sandboxes of an engine, uses no CPU while idle, and ends
with its engine. It starts no programs and drops all privileges.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aenv.isolation.kernel import linux
from aenv.isolation.limits.cgroups import raise_open_files_limit
from aenv.isolation.network.allow_list import Address, AllowList, EgressRefused, equivalent_addresses, is_public
from aenv.isolation.network.proxy_protocols import ProxyFailed, ProxyRequest, Target, read_request, send_error

MESSAGE = 1 << 18
CONNECTIONS = 256
"""Concurrent connections of one sandbox; more wait."""
LOOKUPS = 4
"""Concurrent lookups of one sandbox: names that no server answers must not take all threads from other sandboxes."""
THREADS = 16
HEAD_SECONDS = 30.0
CONNECT_SECONDS = 20.0
IDLE_SECONDS = 300.0
CHUNK = 1 << 16
REPORT_AGAIN_SECONDS = 60.0
"""Seconds before the same refusal is logged again."""
MAX_REPORTED = 100
"""Distinct refusals remembered for `REPORT_AGAIN_SECONDS`; more are not logged."""
NOBODY = 65534

OnRefused = Callable[[str], None]


class ProxyEndpoint:
    """Server side of one sandbox's egress endpoint: accepts, checks and relays its connections."""

    def __init__(
        self, listener: socket.socket, allow: AllowList, lookups: ThreadPoolExecutor, on_refused: OnRefused
    ) -> None:
        self._listener = listener
        self._allow = allow
        self._threads = lookups
        self._lookups = asyncio.Semaphore(LOOKUPS)
        self._send_refusal = on_refused
        self._reported: dict[str, float] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._listening = False
        self._listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Stop listening and close all connections."""
        self._pause()
        self._listener.close()
        for task in self._connections:
            task.cancel()

    def _listen(self) -> None:
        if not self._listening and self._listener.fileno() >= 0:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)
            self._listening = True

    def _pause(self) -> None:
        if self._listening:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listening = False

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # out of file descriptors: pending connections wait until others have closed
            self._pause()
            asyncio.get_running_loop().call_later(0.5, self._listen)
            return
        client.setblocking(False)
        task = asyncio.create_task(self._serve(client))
        self._connections.add(task)
        task.add_done_callback(self._ended)
        if len(self._connections) >= CONNECTIONS:
            self._pause()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            print(f"egress connection failed: {error!r}", file=sys.stderr, flush=True)  # noqa: T201
        self._listen()

    async def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            try:
                async with asyncio.timeout(HEAD_SECONDS):
                    request = await read_request(client)
            except ProxyFailed as failed:
                return await send_error(client, failed.status, str(failed))
            except (TimeoutError, EOFError):
                return None
            try:
                server = await self._reach(request.target)
            except EgressRefused as refused:
                self._report(str(refused))
                await request.refuse(client, 403, str(refused), f"What it may reach: {', '.join(self._allow.texts)}.")
            except ProxyFailed as failed:
                await request.refuse(client, failed.status, str(failed))
            else:
                with server:
                    await _relay(client, server, request)

    def _report(self, why: str) -> None:
        now = time.monotonic()
        if now - self._reported.get(why, -REPORT_AGAIN_SECONDS) >= REPORT_AGAIN_SECONDS:
            if len(self._reported) >= MAX_REPORTED:
                self._reported = {text: at for text, at in self._reported.items() if now - at < REPORT_AGAIN_SECONDS}
            if len(self._reported) < MAX_REPORTED:
                self._reported[why] = now
                self._send_refusal(f"network: {why}\n")

    async def _reach(self, target: Target) -> socket.socket:
        """Connect to the first address of the target that is allowed and answers."""
        addresses = await self._addresses(target)
        last: OSError | None = None
        for address in addresses:
            family = socket.AF_INET if address.version == 4 else socket.AF_INET6
            server = socket.socket(family, socket.SOCK_STREAM)
            server.setblocking(False)
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await asyncio.get_running_loop().sock_connect(server, (str(address), target.port))
            except (OSError, TimeoutError) as error:
                server.close()
                last = error
            except BaseException:
                server.close()
                raise
            else:
                return server
        if isinstance(last, TimeoutError):
            raise ProxyFailed(504, f"{target} does not answer")
        why = os.strerror(last.errno) if last is not None and last.errno else "it has no address"
        raise ProxyFailed(502, f"{target} cannot be reached: {why}")

    async def _addresses(self, target: Target) -> list[Address]:
        try:
            literal = ipaddress.ip_address(target.host)
        except ValueError:
            pass
        else:
            self._check_address(literal, target.port)
            return [literal]
        self._allow.check_name(target.host, target.port)
        allowed: list[Address] = []
        refused: EgressRefused | None = None
        for address in await self._resolve(target):
            try:
                self._check_address(address, target.port, behind=target.host)
            except EgressRefused as reason:
                refused = reason
            else:
                allowed.append(address)
        if refused is not None and not allowed:
            raise refused
        return allowed

    def _check_address(self, address: Address, port: int, *, behind: str | None = None) -> None:
        self._allow.check_address(address, port, behind=behind)
        for each in equivalent_addresses(address):
            if is_public(each) and _is_this_machine(each) and not self._allow.lists_address(each, port):
                raise EgressRefused(f"{each} is this machine; only a network on the list, like {each}, opens it")

    async def _resolve(self, target: Target) -> list[Address]:
        loop = asyncio.get_running_loop()
        async with self._lookups:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    found = await loop.run_in_executor(
                        self._threads,
                        lambda: socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM),
                    )
            except TimeoutError:
                raise ProxyFailed(504, f"looking up {target.host} timed out") from None
            except (OSError, UnicodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "invalid host name"
                raise ProxyFailed(502, f"{target.host} cannot be found: {why}") from None
        texts = dict.fromkeys(str(address[0]).partition("%")[0] for _, _, _, _, address in found)
        return [ipaddress.ip_address(text) for text in texts]


def _is_this_machine(address: Address) -> bool:
    """Return True for an address of this host: the kernel then chooses the same address as the source."""
    with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))  # sends nothing
        except OSError:
            return False
        return str(probe.getsockname()[0]) == str(address)


async def _relay(client: socket.socket, server: socket.socket, request: ProxyRequest) -> None:
    """Copy bytes in both directions until both ends have closed, or for `IDLE_SECONDS` without any."""
    loop = asyncio.get_running_loop()
    last_activity = loop.time()

    async def copy(source: socket.socket, sink: socket.socket) -> None:
        nonlocal last_activity
        while data := await loop.sock_recv(source, CHUNK):
            last_activity = loop.time()
            await loop.sock_sendall(sink, data)
            last_activity = loop.time()
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    async def copy_reply() -> None:
        await request.accept(client, server)
        await copy(server, client)

    await loop.sock_sendall(server, request.first)
    directions: set[asyncio.Future[None]] = {
        asyncio.ensure_future(copy(client, server)),
        asyncio.ensure_future(copy_reply()),
    }
    try:
        while pending := {direction for direction in directions if not direction.done()}:
            if any(
                direction.done() and not direction.cancelled() and direction.exception() for direction in directions
            ):
                return
            wait = last_activity + IDLE_SECONDS - loop.time()
            if wait <= 0:
                return
            await asyncio.wait(pending, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for direction in directions:
            direction.cancel()
        await asyncio.gather(*directions, return_exceptions=True)


class EgressProxy:
    """All endpoints of one engine, opened and closed over its control socket."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._control.setblocking(False)
        self._threads = ThreadPoolExecutor(THREADS, "lookup")
        self._endpoints: dict[str, ProxyEndpoint] = {}
        self._engine_gone = asyncio.Event()

    async def run(self) -> None:
        """Serve until the engine closes the control socket."""
        asyncio.get_running_loop().add_reader(self._control, self._read)
        await self._engine_gone.wait()

    def _read(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._control, MESSAGE, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if not data:
            self._engine_gone.set()
            return
        message: dict[str, Any] = json.loads(data)
        name = str(message["id"])
        old = self._endpoints.pop(name, None)
        if old is not None:
            old.close()
        if message["op"] == "open":
            listener = socket.socket(fileno=fds[0])
            self._endpoints[name] = ProxyEndpoint(
                listener, AllowList(message["allow"]), self._threads, lambda text: self._send_refusal(name, text)
            )

    def _send_refusal(self, name: str, text: str) -> None:
        """Have the engine write a line to the sandbox's log; dropped if that would block."""
        with contextlib.suppress(OSError):
            self._control.send(json.dumps({"id": name, "text": text}).encode())


def main() -> None:
    """Run ``python -m aenv.isolation.network.egress_proxy FD``, where FD is the control socket."""
    control = socket.socket(fileno=int(sys.argv[1]))
    raise_open_files_limit()
    _drop_privileges()
    linux.die_with_parent()  # if the parent is gone already, the control socket is closed
    asyncio.run(EgressProxy(control).run())
    os._exit(0)  # a lookup thread may still block


def _drop_privileges() -> None:
    """Give up the user's or root's privileges: this process parses untrusted input and needs none."""
    os.chdir("/")
    with contextlib.suppress(OSError):
        socket.getaddrinfo("localhost", 80)  # load the resolver's libraries, which `nobody` may be unable to read later
    with contextlib.suppress(OSError):
        os.setsid()
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    linux.no_new_privileges()
    linux.drop_capabilities()


if __name__ == "__main__":
    main()
