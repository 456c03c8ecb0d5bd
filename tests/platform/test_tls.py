"""TLS served by the platform itself, and a URL prefix behind a proxy."""

from __future__ import annotations

import hashlib
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest
import websockets

from aenv.client.platform_client import ApiClient
from aenv.errors import InstanceUnreachable
from aenv.http.client import ConnectFailed
from aenv.http.relay import Relay
from aenv.http.url import ServerUrl
from aenv.sdk.environment import Environment
from tests.certificates import self_signed
from tests.conftest import run
from tests.platform.parts import environ, serving
from tests.storage.valkey import started


def fingerprint_at(url: str) -> str:
    at = ServerUrl.parse(url)
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((at.host, at.port)))).hexdigest()


def test_all_connections_use_tls_between_servers_too(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = self_signed(tmp_path)
    options = ("--tls-cert", str(files[0]), "--tls-key", str(files[1]), "--prefix", "/aenv")
    with started(tmp_path) as valkey:
        store = ("--store", valkey.url())
        with serving(data, *options, *store) as one, serving(data, *options, *store) as other:
            assert one.url.startswith("https://")
            assert one.url.endswith("/aenv")

            async def untrusted() -> None:
                async with ApiClient(one.url, api_key=one.first_token, max_retries=0) as api:
                    with pytest.raises(InstanceUnreachable, match="certificate"):
                        await api.list_env_instances()

            async def trusted() -> None:
                monkeypatch.setenv("SSL_CERT_FILE", str(files[0]))
                async with one.environment(token=one.first_token) as env:
                    text = "ü" * 4_000_000
                    assert (await env.call_tool("echo", {"text": text})).data == text
                    name = (await env.get_env_info())["instance_id"]
                    (tmp_path / "folder").mkdir()
                    (tmp_path / "folder" / "f").write_bytes(b"x" * 1_000_000)
                    await env.upload(tmp_path / "folder", "/tmp/there")
                    await env.download_to("/tmp/there", tmp_path / "back")
                    assert (tmp_path / "back" / "f").read_bytes() == b"x" * 1_000_000
                    assert (await env.presign_url(80)).startswith(one.url + "/port/")
                    there = Environment("counter", aenv_url=other.url, api_key=one.first_token, instance_id=name)
                    async with there:
                        assert (await there.call_tool("increment")).data == 1
                    where = f"{one.url}/instance/{name}/port/1/".replace("https://", "wss://")
                    header = {"authorization": f"Bearer {one.first_token}"}
                    with pytest.raises(websockets.InvalidStatus):  # nothing listens there, an HTTP error
                        async with websockets.connect(where, additional_headers=header):
                            pass

            run(untrusted())
            run(trusted())
            before = fingerprint_at(one.url)
            for old, new in zip(files, self_signed(tmp_path, "renewed"), strict=True):
                new.replace(old)
            one.process.send_signal(signal.SIGHUP)
            while fingerprint_at(one.url) == before:
                time.sleep(0.05)

            async def after() -> None:
                """Wait until the other server has read the new certificate's fingerprint."""
                monkeypatch.setenv("SSL_CERT_FILE", str(files[0]))
                async with one.environment(token=one.first_token) as env:
                    name = (await env.get_env_info())["instance_id"]
                    relay = Relay(ServerUrl.parse(other.url), before)  # the other server still shows the old one
                    head = (
                        f"GET /env-instance/{name} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {one.first_token}\r\n"
                    )
                    status = 0
                    while status != 200:
                        passed = await relay.send(head.encode(), b"")
                        status = passed.status
                        [part async for part in passed.chunks()]
                    relay.close()

            run(after())
            files[1].write_text("nonsense")
            one.process.send_signal(signal.SIGHUP)
            while "stays in use" not in one.log.read_text():
                time.sleep(0.05)
            assert fingerprint_at(one.url) != before


def test_a_peer_with_another_certificate_than_in_the_store_is_refused(data: Path, tmp_path: Path) -> None:
    files = self_signed(tmp_path)
    with serving(data, "--tls-cert", str(files[0]), "--tls-key", str(files[1])) as served:

        async def main() -> None:
            good, bad = (Relay(ServerUrl.parse(served.url), pin) for pin in (fingerprint_at(served.url), "0" * 64))
            answer = await good.send(b"GET /health HTTP/1.1\r\nhost: x\r\n", b"")
            assert answer.status == 200
            answer.complete_body()
            good.close()
            with pytest.raises(ConnectFailed, match="unexpected certificate"):
                await bad.send(b"GET /health HTTP/1.1\r\nhost: x\r\n", b"")

        run(main())


@pytest.mark.parametrize("wrong", ["missing", "nonsense", "swapped", "half"])
def test_an_invalid_certificate_is_reported_before_serving(tmp_path: Path, wrong: str) -> None:
    cert, key = self_signed(tmp_path)
    if wrong == "missing":
        key.unlink()
    elif wrong == "nonsense":
        cert.write_text("nonsense")
    elif wrong == "swapped":
        cert, key = key, cert
    options = ["--tls-cert", str(cert), *(["--tls-key", str(key)] if wrong != "half" else [])]
    done = subprocess.run(
        [sys.executable, "-m", "aenv.cli", "serve", "--check", "--port", "0", "--data-port", "0", *options],
        env=environ(tmp_path), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "WRONG  tls:" in done.stdout
