"""The store contract on SQLite and Redis, and behaviour specific to each."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import itertools
import signal
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from aenv.errors import ConfigError, Unavailable
from aenv.storage.base import Put, Query, Store
from aenv.storage.open_url import open_store
from aenv.storage.redis import RedisStore, without_password
from aenv.storage.sqlite import SqliteStore
from aenv.testing.stores import StoreContract
from tests.conftest import run
from tests.storage.valkey import PASSWORD, Valkey

prefixes = itertools.count()


class TestSqlite(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Callable[[], Store]:
        return lambda: open_store(f"sqlite:{tmp_path}/folder/store.db")


class TestRedis(StoreContract):
    @pytest.fixture
    def store(self, redis_server: Valkey) -> Callable[[], Store]:
        url = redis_server.url(prefix=f"contract{next(prefixes)}:")
        return lambda: open_store(url)


# --- SQLite

WRITER = """
import asyncio, sys
from pathlib import Path
from aenv.storage.base import Put
from aenv.storage.sqlite import SqliteStore

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    for number in range(1_000_000):
        await store.commit(*(Put("a", f"{part}", b"%d" % number) for part in range(50)))
        print(number, flush=True)

asyncio.run(main())
"""


def test_a_killed_writer_leaves_only_complete_commits(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(5):
            reported = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)

    async def read() -> set[int]:
        store = SqliteStore(path)
        page = await store.page(Query("a"))
        await store.commit(Put("a", "again", b""))
        await store.close()
        return {int(record.value) for record in page.records}

    numbers = run(read())
    assert len(numbers) == 1, "a partial commit is visible"
    assert numbers.pop() >= reported


def test_the_file_of_a_store_is_private_to_its_owner(tmp_path: Path) -> None:
    run(SqliteStore(tmp_path / "own" / "store.db").close())
    assert stat.S_IMODE((tmp_path / "own" / "store.db").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "own").stat().st_mode) == 0o700


def test_a_file_that_is_not_a_store_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Dear diary, " * 100)
    with pytest.raises(ConfigError, match="not an aenv store"):
        SqliteStore(path)
    assert path.read_text().startswith("Dear diary")


def test_a_store_written_by_a_newer_aenv_is_refused(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "store.db"
    run(SqliteStore(path).close())
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(ConfigError, match="newer aenv"):
        SqliteStore(path)


@pytest.mark.parametrize("url", ["sqlite:", "sqlite:/", "http://x", "mongo://x"])
def test_an_invalid_store_url_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError):
        open_store(url)


# --- Redis


def test_a_killed_redis_restarts_with_every_acknowledged_commit(
    redis_server: Valkey,
) -> None:
    async def use() -> None:
        store = RedisStore(redis_server.url(prefix="killed:"))
        await store.commit(*(Put("a", f"{number}", b"x" * 1000, (("i", f"{number}"),)) for number in range(100)))
        redis_server.kill()
        with pytest.raises(Unavailable, match="does not answer"):
            await store.get("a", "1")
        redis_server.start()
        assert len((await store.page(Query("a", ("i",)))).records) == 100
        await store.close()

    run(use())


def test_a_read_survives_a_quick_restart_of_redis(redis_server: Valkey) -> None:
    async def use() -> None:
        store = RedisStore(redis_server.url(prefix="soon:"), retries=40)
        await store.commit(Put("a", "1", b""))
        redis_server.kill()
        asking = asyncio.create_task(store.get("a", "1"))
        await asyncio.to_thread(redis_server.start)
        assert await asking is not None
        await store.close()

    run(use())


def test_a_commit_retried_after_a_lost_reply_is_applied_once(redis_server: Valkey) -> None:
    """The retry has the same id, and the server returns the remembered result."""

    class Retrying(RedisStore):
        def _request(self, work):  # type: ignore[no-untyped-def]
            super()._request(work)
            return super()._request(work)

    async def use() -> None:
        store = Retrying(redis_server.url(prefix="twice:"))
        first = await store.commit(Put("a", "1", b"", expect=0))
        second = await store.commit(Put("a", "1", b"", expect=first))
        assert second == first + 1
        await store.close()

    run(use())


def test_a_wrong_password_is_a_config_error_that_does_not_show_it(redis_server: Valkey) -> None:
    async def use() -> None:
        store = RedisStore(redis_server.url().replace(PASSWORD, "guess-who"))
        with pytest.raises(ConfigError) as caught:
            await store.get("a", "1")
        assert "guess-who" not in str(caught.value)
        await store.close()

    run(use())


def test_an_unreachable_redis_is_unavailable_with_a_hint() -> None:
    async def use() -> None:
        store = RedisStore("redis://user:secret@127.0.0.1:1/0", retries=0)
        with pytest.raises(Unavailable) as caught:
            await store.get("a", "1")
        assert "secret" not in str(caught.value)
        assert caught.value.details["hint"]
        assert caught.value.retryable
        await store.close()

    run(use())


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:pw@h:1/0", "redis://***@h:1/0"),
        ("rediss://u:pw@h", "rediss://***@h"),
        ("redis://h/1?password=pw&prefix=x", "redis://h/1?prefix=x"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_tls_is_configured_by_the_url_and_an_untrusted_certificate_is_refused(
    redis_server: Valkey, tmp_path: Path
) -> None:
    certificate, key = _certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)

    async def pipe(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                target.write(data)
        target.close()

    relays: list[asyncio.Task[None] | None] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relays.append(asyncio.current_task())
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", redis_server.port)
        await asyncio.gather(pipe(reader, inner_writer), pipe(inner_reader, writer))

    async def use() -> None:
        # A TLS proxy in front of the server: the wheel's server is built without TLS.
        front = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=tls)
        url = f"rediss://:{PASSWORD}@127.0.0.1:{front.sockets[0].getsockname()[1]}/0"
        trusting = RedisStore(f"{url}?ssl_ca_certs={certificate}&prefix=tls:")
        await trusting.commit(Put("a", "1", b""))
        assert await trusting.get("a", "1") is not None
        await trusting.close()
        untrusting = RedisStore(url, retries=0)
        with pytest.raises(Unavailable):
            await untrusting.get("a", "1")
        await untrusting.close()
        front.close()
        await asyncio.gather(*(each for each in relays if each is not None))

    run(use())


def _certificate(folder: Path) -> tuple[Path, Path]:
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder(name, name, private.public_key(), 1, now - day, now + day)
        .add_extension(address, False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(private, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(pem))
    key.write_bytes(private.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    return certificate, key
