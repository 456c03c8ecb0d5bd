"""The standard engine contract, from both of its sides, with a service that is a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aenv.engines.base import Engine, SandboxSpec
from aenv.engines.standard import StandardEngine, environment_of
from aenv.errors import Unauthorized, Unavailable
from aenv.isolation.limits.cgroups import Limits
from aenv.testing.contracts import EngineContract
from aenv.testing.standard_contract import ServiceAt, StandardContract
from tests.conftest import run

TOKEN = "s3cret"


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceAt]:
    process = subprocess.Popen(
        [sys.executable, "-m", "aenv.testing.standard_service", "--port", "0"],
        stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env={**os.environ, "AENV_ENGINE_TOKEN": TOKEN},
    )  # fmt: skip
    with process:
        try:
            assert process.stdout is not None
            yield ServiceAt(process.stdout.readline().split()[-1], TOKEN)
        finally:
            process.terminate()
            assert process.wait(30) == 0


class TestService(StandardContract):
    """Ours keeps it."""


class TestEngine(EngineContract):
    """What a service gives is an engine like any other."""

    @pytest.fixture
    def engine(self, service: ServiceAt) -> Callable[[], Engine]:
        return lambda: StandardEngine(service.url, service.token)


def test_a_dead_instance_has_ended_and_instances_of_other_users_are_ignored(service: ServiceAt, tmp_path: Path) -> None:
    (tmp_path / "env.py").write_text(
        "import os\nfrom aenv import register_tool\n@register_tool\ndef pid() -> int:\n    return os.getpid()\n"
    )

    async def main() -> None:
        mine, other = (StandardEngine(service.url, service.token) for _ in range(2))
        try:
            ref = await mine.start(SandboxSpec("x@1.0.0", tmp_path, tmp_path))
            await other.start(SandboxSpec("x@1.0.0", tmp_path, tmp_path))
            assert [each.id async for each in mine.running()] == [ref.id]
            from aenv.client.instance_client import InstanceClient
            from aenv.http.url import ServerUrl

            client = InstanceClient(ServerUrl.parse(ref.data_url), token=ref.token)
            pid = int((await client.call("/tools/pid", {}, timeout=30))["content"][0]["text"])
            client.close()
            os.kill(pid, signal.SIGKILL)
            while [each async for each in mine.running()]:
                pass
            ended = await mine.poll(ref)
            assert ended is not None
            assert "exit code" in ended.reason
            await mine.stop(ref)
        finally:
            await mine.close()
            await other.close()

    run(main())


def test_a_service_that_refuses_or_is_missing_is_an_error(service: ServiceAt, tmp_path: Path) -> None:
    async def main() -> None:
        spec = SandboxSpec("x@1.0.0", tmp_path, tmp_path)
        stranger, nowhere = StandardEngine(service.url, "wrong"), StandardEngine("http://127.0.0.1:9")
        with pytest.raises(Unauthorized):
            await stranger.start(spec)
        with pytest.raises(Unavailable, match=r"the engine at http://127.0.0.1:9 does not answer"):
            await nowhere.start(spec)
        await stranger.close()
        await nowhere.close()

    run(main())


def test_a_request_has_both_spellings(tmp_path: Path) -> None:
    config = {
        "name": "shop", "version": "2.0.0", "artifacts": [{"type": "image", "content": "shop:2"}], "tags": ["a"],
        "deployConfig": {"ttl": "1h", "podTemplate": "own"},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    limits = Limits(memory=1 << 30, cpus=1.5, disk=1 << 20)
    said = environment_of(
        SandboxSpec("shop@2.0.0", tmp_path, tmp_path / "src", {"A": "1", "AENV_DATASOURCE": "d"}, ["-x"], limits)
    )
    assert (said["name"], said["version"], said["artifacts"]) == ("shop", "2.0.0", config["artifacts"])
    assert said["codeUrl"] == said["code_url"] == f"file://{tmp_path}/src"
    assert said["deployConfig"] == said["deploy_config"]
    assert said["deployConfig"] | {"network": None} == {
        "ttl": "1h", "podTemplate": "own", "environment_variables": {"A": "1", "AENV_DATASOURCE": "d"},
        "arguments": ["-x"], "dataSource": "d", "owner": "", "cpu": "1.5", "memory": str(1 << 30),
        "ephemeralStorage": str(1 << 20), "tenant": "", "network": None,
    }  # fmt: skip
