"""Nothing waits in silence: terminals show what a command or a program waits for, and logs say it elsewhere."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from aenv import Environment
from aenv.client import first_contact
from aenv.client.hub_client import HubClient
from aenv.errors import InstanceUnreachable, NotFound, Unavailable
from aenv.hub.open_hub import open_hub
from aenv.platform.instances.requests.env_sources import Sources
from aenv.platform.instances.requests.resolved_versions import Resolved, ResolvedVersions
from aenv.schema.instances import EnvInstanceCreateRequest, HubAccess
from tests.conftest import run
from tests.waiting import PATIENCE, wait_while

AENV = [sys.executable, "-m", "aenv.cli"]
SCRIPT = """
import logging, sys
from aenv import SyncEnvironment
if len(sys.argv) > 2:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("aenv").setLevel(logging.INFO)
try:
    with SyncEnvironment(sys.argv[1]) as env:
        print("ready")
except Exception as error:
    print("failed", error)
"""


class SlowIndex:
    """A package index that keeps every request waiting until it is let go, and then has no package."""

    def __init__(self) -> None:
        self.go = threading.Event()
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.go.wait(60)
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_HEAD = do_GET

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.go.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def index() -> Iterator[SlowIndex]:
    made = SlowIndex()
    yield made
    made.close()


@pytest.fixture
def slow(project: Path, index: SlowIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose package comes from a slow index."""
    (project / "requirements.txt").write_text(f"--index-url http://{index.host}/simple\nno-such-package-of-ours\n")
    config = json.loads((project / "config.json").read_text())
    config["deployConfig"]["network"] = [index.host]
    (project / "config.json").write_text(json.dumps(config))
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    return project


def on_terminal(command: list[str], expected: str, index: SlowIndex) -> tuple[str, int]:
    """Run a command on a terminal, let the index go once the text is shown, and return its output and exit code."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    said, deadline = "", time.monotonic() + 3 * PATIENCE
    try:
        while time.monotonic() < deadline:
            if not select.select([ours], [], [], 1.0)[0]:
                continue
            try:
                data = os.read(ours, 65536)
            except OSError:  # the terminal is closed: the process has ended
                break
            said += data.decode(errors="replace")
            if expected in said:
                index.go.set()
        return said, process.wait(PATIENCE)
    finally:
        index.go.set()
        process.kill()
        process.wait()
        os.close(ours)


INSTALLING = "the installation of no-such-package-of-ours"


def test_a_first_install_of_aenv_run_is_shown_on_a_terminal(slow: Path, index: SlowIndex) -> None:
    expected = f"waiting for {INSTALLING}"
    said, code = on_terminal([*AENV, "run", str(slow), "-p", "0"], expected, index)
    assert expected in said
    assert code == 4


def test_a_first_install_of_an_environment_is_shown_on_a_terminal(slow: Path, index: SlowIndex) -> None:
    expected = f"waiting for an instance of counter@1.2.0: {INSTALLING}"
    said, _ = on_terminal([sys.executable, "-c", SCRIPT, str(slow)], expected, index)
    assert expected in said
    assert "failed" in said


def test_elsewhere_the_wait_is_logged(slow: Path, index: SlowIndex, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(slow), "logged"], stdout=file, stderr=file)
    try:
        wait_while(lambda: INSTALLING not in log.read_text() and "not logged", "no line", 3 * PATIENCE)
        assert f"waiting for an instance of counter@1.2.0: {INSTALLING}" in log.read_text()
    finally:
        index.go.set()
        process.wait(3 * PATIENCE)


@pytest.fixture
def wrong_url() -> Iterator[str]:
    """A URL that nothing listens on, and nothing did before: servers that have once answered are tried for longer.

    The port stays bound, or another process of the machine might take it.
    """
    with socket.socket() as bound:
        bound.bind(("127.0.0.2", 0))
        yield f"http://127.0.0.2:{bound.getsockname()[1]}"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Lengths of all pauses that the event loop is asked for, in seconds."""
    asked = []
    sleep = asyncio.sleep

    async def recorded(delay: float, result: object = None) -> object:
        asked.append(delay)
        return await sleep(delay, result)

    monkeypatch.setattr(asyncio, "sleep", recorded)
    return asked


def test_a_wrong_url_of_the_platform_is_not_tried_for_long(wrong_url: str, pauses: list[float]) -> None:
    """The ten retries of a platform that has answered before take half a minute."""
    with pytest.raises(InstanceUnreachable, match=f"no platform at {wrong_url}.*check AENV_SYSTEM_URL"):
        run(Environment("a@1.0.0", aenv_url=wrong_url).initialize())
    assert sum(pauses) < 3


def test_a_wrong_url_of_a_hub_is_not_tried_for_long(wrong_url: str, pauses: list[float]) -> None:
    async def main() -> None:
        client = HubClient(wrong_url, retries=100)
        with pytest.raises(Unavailable, match="cannot be reached"):
            await client.get("a")
        await client.close()

    run(main())
    assert sum(pauses) < 3


def test_a_hub_that_answered_before_is_waited_for_as_long_as_the_caller_says(
    wrong_url: str, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_contact, "_answered", {wrong_url})

    async def main() -> None:
        client = HubClient(wrong_url, retries=100, restart=0.5)
        with pytest.raises(Unavailable, match="cannot be reached"):
            await client.get("a")
        await client.close()

    run(main())
    assert sum(pauses) < 3


@pytest.mark.parametrize("on_disk", [True, False])
def test_an_exact_version_that_is_cached_does_not_wait_for_its_hub(tmp_path: Path, on_disk: bool) -> None:
    """The hub accepts connections and never answers."""
    digest = f"sha256:{'0' * 64}"
    folder = tmp_path / "bundles" / digest.replace(":", "-")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"name": "a", "version": "1.0.0"}')

    async def main(port: int) -> None:
        access = HubAccess(url=f"http://127.0.0.1:{port}", cache=str(tmp_path), timeout=600)
        if on_disk:
            ResolvedVersions().put(access, "a@1.0.0", Resolved(folder, digest, ("a@1.0.0 is deprecated: old",)))
        sources = Sources(lambda given: HubClient(given.url, timeout=600))
        request = EnvInstanceCreateRequest(envName="a@1.0.0", hub=access)
        try:
            if on_disk:
                for _ in range(20):  # a second each, if every one of them waited
                    found = await sources.find(request)
                    assert (found.root, found.digest) == (folder, digest)
                    assert found.notices == ("a@1.0.0 is deprecated: old",)
            else:
                finding = sources.find(request)
                with pytest.raises(TimeoutError):  # nothing is known, so the hub must answer
                    await asyncio.wait_for(finding, 1.5)
        finally:
            await sources.close()

    with socket.create_server(("127.0.0.1", 0)) as silent:
        run(main(silent.getsockname()[1]))


def test_a_range_takes_the_newest_cached_version_while_its_hub_is_down(
    tmp_path: Path, wrong_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing listens at the hub's address, although it answered before."""
    monkeypatch.setattr(first_contact, "_answered", set())
    access = HubAccess(url=wrong_url, cache=str(tmp_path))
    other = access.model_copy(update={"token": "of-another-user"})
    folders = {}
    for number, version in enumerate(("1.0.0", "1.1.0", "1.2.0", "1.3.0", "2.0.0")):
        digest = f"sha256:{number:064d}"
        folders[version] = tmp_path / "bundles" / digest.replace(":", "-")
        folders[version].mkdir(parents=True)
        (folders[version] / "config.json").write_text(f'{{"name": "a", "version": "{version}"}}')
        found = Resolved(folders[version], digest, (), version, yanked=version == "1.2.0")
        ResolvedVersions().put(other if version == "1.3.0" else access, f"a@{version}", found)

    async def main() -> None:
        sources = Sources(open_hub)
        hub = HubClient(access.url)
        first_contact.record(hub.url)
        try:
            for wanted, version in (("a@1", "1.1.0"), ("a@~1.0", "1.0.0"), ("a", "2.0.0")):
                found = await sources.find(EnvInstanceCreateRequest(envName=wanted, hub=access))
                assert found.root == folders[version], wanted
                assert found.notices == (
                    f"{wanted}: the hub does not answer; using {version}, the newest that is cached here",
                )
            for missing in ("a@3", "b"):
                with pytest.raises(Unavailable, match=r"the hub at .* cannot be reached") as failure:
                    await sources.find(EnvInstanceCreateRequest(envName=missing, hub=access))
                assert failure.value.details["hub"] == access.url, "clients do not retry"
        finally:
            await hub.close()
            await sources.close()

    run(main())


@pytest.mark.parametrize("wanted", ["a@1.0.0", f"a@sha256:{'0' * 64}"])
def test_an_exact_version_that_came_by_another_name_does_not_need_its_hub(
    tmp_path: Path, wrong_url: str, wanted: str
) -> None:
    digest = f"sha256:{'0' * 64}"
    folder = tmp_path / "bundles" / digest.replace(":", "-")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"name": "a", "version": "1.0.0"}')
    access = HubAccess(url=wrong_url, cache=str(tmp_path))
    ResolvedVersions().put(access, "a", Resolved(folder, digest, (), "1.0.0"))

    class Refusing(HubClient):
        async def get(self, name: str, ref: str = "") -> Any:
            raise NotFound("there is no such version")

    async def main() -> None:
        sources = Sources(open_hub)
        try:
            found = await sources.find(EnvInstanceCreateRequest(envName=wanted, hub=access))
            assert (found.root, found.notices) == (folder, ())
            with pytest.raises(Unavailable):
                await sources.find(EnvInstanceCreateRequest(envName="a@1.0.1", hub=access))
        finally:
            await sources.close()
        refusing = Sources(lambda given: Refusing(given.url))
        try:
            with pytest.raises(NotFound):
                await refusing.find(EnvInstanceCreateRequest(envName=wanted, hub=access))
        finally:
            await refusing.close()
        assert ResolvedVersions().get(access, "a") is None, "what the hub refused is not used later"

    run(main())


def test_an_interrupted_server_says_that_a_second_interrupt_is_instant(project: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*AENV, "run", str(project), "-p", "0", "-q"], stdout=subprocess.PIPE, stderr=file, text=True
        )
    assert process.stdout is not None
    assert "is ready" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 0
    process.stdout.close()
    assert "a second signal (Ctrl-C) stops at once" in log.read_text()


def test_an_interrupted_benchmark_says_how_to_resume(tmp_path: Path) -> None:
    begun, place = tmp_path / "begun", tmp_path / "run"
    with (tmp_path / "log").open("wb") as file:
        process = subprocess.Popen(
            [*AENV, "bench", "run", "bfcl", "--agent", f"touch {begun}; sleep 600", "--run", str(place),
             "--limit", "3", "--parallel", "3"],
            stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    try:
        wait_while(lambda: not begun.exists() and "no agent runs", "not started", 3 * PATIENCE)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    finally:
        process.kill()
        process.wait()
    said = (tmp_path / "log").read_text()
    assert f"Interrupted: 0 results are saved. Resume with: aenv bench resume {place}" in said
    assert "never retrieved" not in said
    assert "Traceback" not in said
    assert "Aborted" not in said
