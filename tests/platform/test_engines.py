"""Platforms with external engines: a service at a URL, or a plug-in."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aenv.errors import InstanceEnded, InstanceUnreachable
from tests.conftest import fetch, run
from tests.platform.parts import environ, serving

PLUGIN = """
from aenv.engines.process import ProcessEngine


class Theirs(ProcessEngine):
    networks = frozenset(("loopback",))
"""


@pytest.fixture
def service(data: Path) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "aenv.testing.standard_service", "--port", "0"],
        stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env={**environ(data), "AENV_ENGINE_TOKEN": "t"},
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
        process.terminate()
        assert process.wait(30) == 0


def test_a_service_at_a_url_creates_the_instances(data: Path, service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AENV_ENGINE_TOKEN", "t")
    with serving(data, "--engine", service, auth=True) as platform:
        token = platform.token("ann")

        async def main() -> None:
            async with platform.environment("counter", token, environment_variables={"MINE": "1"}) as env:
                assert (await env.call_tool("increment")).data == 1
                assert (await env.call_tool("variable", {"name": "MINE"})).data == "1"
                assert await env.call_reward() == 1.0
                theirs = fetch(service, "/aenvironment/instance", headers={"authorization": "Bearer t"})[1]["data"]
                assert [each["env"] for each in theirs] == [{"name": "counter", "version": "1.2.0"}]
                with pytest.raises(Exception, match=r"may have run|ended"):
                    await env.call_tool("die")
                said: Exception = InstanceUnreachable("")
                for _ in range(100):  # the service may not have noticed yet
                    if isinstance(said, InstanceUnreachable):
                        await asyncio.sleep(0.05)
                        with pytest.raises((InstanceEnded, InstanceUnreachable)) as caught:
                            await env.call_tool("increment")
                        said = caught.value
                assert isinstance(said, InstanceEnded)
                assert "exit code" in str(said)

        run(main())
        assert fetch(platform.url, "/ready")[1]["data"]["engine"] == "ok"
    assert fetch(service, "/aenvironment/instance", headers={"authorization": "Bearer t"})[1]["data"] == []


def test_check_reports_an_invalid_engine(data: Path, service: str) -> None:
    def check(engine: str, **more: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "aenv.cli", "serve", "--check", "--one-port", "--port", "0"]
        done = subprocess.run(
            [*command, "--engine", engine],
            env={**environ(data), **more}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    assert check(service, AENV_ENGINE_TOKEN="t")[0] == 0
    code, said = check(service, AENV_ENGINE_TOKEN="wrong")
    assert code == 3
    assert "WRONG  engine: the service's token is required" in said
    code, said = check("http://127.0.0.1:9")
    assert code == 3
    assert "does not answer" in said
    code, said = check("navite")
    assert code == 3
    assert "unknown engine 'navite'; expected one of docker, gvisor, k8s, kubernetes, native, process" in said


def test_a_plug_in_engine_is_selected_by_name(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = data / "site"
    about = site / "theirs-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "theirs.py").write_text(PLUGIN)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[aenv.engines]\ntheirs = theirs:Theirs\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])]))
    with serving(data, "--engine", "theirs", auth=False) as platform:

        async def main() -> None:
            async with platform.environment("counter") as env:
                assert (await env.call_tool("increment")).data == 1

        run(main())
