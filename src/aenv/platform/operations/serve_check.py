"""``aenv serve --check``: checks whether a platform could be served with these settings, and what to do if not."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from aenv.errors import AEnvError, Unavailable
from aenv.isolation.files.scratch_folders import scratch_folder
from aenv.platform.access.platform_tokens import PlatformTokens
from aenv.platform.access.tls import Tls
from aenv.platform.instances.requests.env_sources import OpenHub
from aenv.platform.operations.engine_factory import check_host, create_engine
from aenv.platform.operations.settings import ServeSettings
from aenv.schema.bundle import digest_of
from aenv.schema.instances import HubAccess
from aenv.storage.open_url import data_folder, open_blobs, open_store

SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check."""

    what: str
    ok: bool
    said: str
    hint: str = ""


async def check(settings: ServeSettings, open_hub: OpenHub) -> list[CheckResult]:
    """Run all checks, also after one has failed."""
    checks: list[tuple[str, Callable[[ServeSettings], Awaitable[str]]]] = [
        ("address", _address),
        *([("tls", _tls)] if settings.tls_cert or settings.tls_key else []),
        ("store", _store),
        *([("blobs", _blobs)] if settings.blobs else []),
        ("hub", lambda settings: _hub(settings, open_hub)),
        ("engine", _engine),
        ("audit log", _audit),
        ("access", _access),
    ]
    found = []
    for what, run in checks:
        try:
            async with asyncio.timeout(SECONDS):
                found.append(CheckResult(what, True, await run(settings)))
        except AEnvError as error:
            found.append(CheckResult(what, False, error.message, str(error.details.get("hint", ""))))
        except _CheckFailed as error:
            found.append(CheckResult(what, False, error.said, error.hint))
        except TimeoutError:
            found.append(CheckResult(what, False, f"no answer within {SECONDS:g} s"))
        except OSError as error:
            found.append(CheckResult(what, False, str(error)))
    return found


class _CheckFailed(Exception):
    def __init__(self, said: str, hint: str = "") -> None:
        super().__init__(said)
        self.said, self.hint = said, hint


async def _address(settings: ServeSettings) -> str:
    ports = {"--port": settings.port} | ({} if settings.one_port else {"--data-port": settings.data_port})
    if len({port for port in ports.values() if port}) < sum(1 for port in ports.values() if port):
        raise _CheckFailed("both planes have the same port", "Add --one-port if that is intended.")
    for option, port in ports.items():
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((settings.host, port))
            except OSError as error:
                raise _CheckFailed(
                    f"cannot listen on {settings.host}:{port}: {error.strerror or error}", _listen_hint(error, option)
                ) from None
    return f"{settings.host}, {' and '.join(str(port) for port in ports.values())}"


def _listen_hint(error: OSError, option: str) -> str:
    """Return what to do about an address that cannot be listened on. ``option`` is that of the port."""
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return "Choose an address of this machine with --host; 0.0.0.0 stands for all of them."
    if error.errno == errno.EACCES:
        return f"Only root may use ports below 1024; choose a higher one with {option}."
    return f"Stop what listens there, or choose another port with {option}."


async def _tls(settings: ServeSettings) -> str:
    tls = Tls.of(settings)
    assert tls is not None
    return f"{settings.tls_cert}, SHA-256 {tls.fingerprint}"


async def _blobs(settings: ServeSettings) -> str:
    blobs = open_blobs(settings.blobs_url)
    try:
        await blobs.sizes([digest_of(b"")])
    finally:
        await blobs.close()
    return blobs.url


async def _store(settings: ServeSettings) -> str:
    store = open_store(settings.store_url)
    try:
        await store.get("meta", "health")
    finally:
        await store.close()
    return store.url


async def _hub(settings: ServeSettings, open_hub: OpenHub) -> str:
    hub = open_hub(HubAccess(url=settings.hub, token=settings.hub_token, timeout=5, data=str(data_folder())))
    try:
        await hub.list(limit=1)
    finally:
        await hub.close()
    return settings.hub or "in this server"


async def _engine(settings: ServeSettings) -> str:
    try:
        note = await asyncio.to_thread(check_host, settings.engine)
    except Unavailable as error:
        raise _CheckFailed(f"{settings.engine}: {error.message}", "See --engine in 'aenv serve --help'.") from None
    await _list_sandboxes(settings)
    return f"{settings.engine}: {note}" if note else settings.engine


async def _list_sandboxes(settings: ServeSettings) -> None:
    """Construct the engine and list its sandboxes: a service must answer, and accept the token."""
    with scratch_folder("check") as folder:
        engine = create_engine(settings.engine, Path(folder) / "instances", settings.engine_options(""))
        try:
            async for _ in engine.running():
                break
        finally:
            await engine.close()


async def _audit(settings: ServeSettings) -> str:
    from aenv.platform.access.audit_log import AuditLog

    AuditLog(settings.audit_file).close()
    return str(settings.audit_file)


async def _access(settings: ServeSettings) -> str:
    if not settings.with_auth:
        return settings.who_may_call
    store = open_store(settings.store_url)
    try:
        count = len(await PlatformTokens(store).all())
    finally:
        await store.close()
    return f"with one of {count} tokens" if count else "with a token; the first is shown when the server starts"
