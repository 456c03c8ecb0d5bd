"""The gVisor engine keeps the contract, and has a kernel of its own."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from aenv.client.instance_client import InstanceClient
from aenv.engines.base import Engine, SandboxSpec
from aenv.engines.gvisor import GvisorEngine, find_runsc
from aenv.errors import Unavailable
from aenv.http.url import ServerUrl
from aenv.testing.contracts import EngineContract
from tests.engines.test_contract import folder as folder  # the same fixture
from tests.isolation.host import processes
from tests.waiting import wait_while

LOOK = """
import os, socket
from pathlib import Path
from aenv import register_tool

@register_tool
def look() -> dict:
    with open("/app/mine", "w") as file:
        file.write("x")
    reached = None
    try:
        socket.create_connection(("192.0.2.1", 80), timeout=2)
    except OSError as error:
        reached = error.errno
    return {
        "kernel": Path("/proc/version").read_text(),
        "caps": [line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")],
        "root": sorted(os.listdir("/")),
        "home": os.path.exists("/etc/shadow"),
        "reached": reached,
        "interfaces": [name for _, name in socket.if_nameindex()],
    }
"""


@pytest.fixture(scope="module")
def runsc() -> str:
    try:
        return find_runsc()
    except Unavailable as error:
        pytest.skip(error.message)


class TestGvisor(EngineContract):
    @pytest.fixture
    def engine(self, folder: Path, runsc: str) -> Callable[[], Engine]:
        return lambda: GvisorEngine(folder / "gvisor")


def test_the_host_is_out_of_reach(folder: Path, tmp_path: Path, runsc: str) -> None:
    (tmp_path / "env.py").write_text(LOOK)

    async def main() -> None:
        engine = GvisorEngine(folder / "gvisor")
        try:
            ref = await engine.start(SandboxSpec("look@1.0.0", tmp_path, tmp_path))
            client = InstanceClient(ServerUrl.parse(ref.data_url), token=ref.token)
            seen = json.loads((await client.call("/tools/look", {}, timeout=60))["content"][0]["text"])
            client.close()
            assert os.uname().release not in seen["kernel"]
            assert set(seen["caps"]) == {"0000000000000000"}
            assert not seen["home"]
            assert seen["reached"] is not None
            assert seen["interfaces"] == ["lo"]
            assert not (tmp_path / "mine").exists()
        finally:
            await engine.close()

    asyncio.run(asyncio.wait_for(main(), 120))


def test_killing_runsc_leaves_no_process(folder: Path, tmp_path: Path, runsc: str) -> None:
    (tmp_path / "env.py").write_text(LOOK)

    async def main() -> None:
        engine = GvisorEngine(folder / "gvisor")
        try:
            ref = await engine.start(SandboxSpec("look@1.0.0", tmp_path, tmp_path))
            [run] = [p for p in processes().values() if ref.id in p.command and p.parent == os.getpid()]
            run.kill()
            while await engine.poll(ref) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await engine.stop(ref)
            await asyncio.to_thread(
                wait_while, lambda: [p.command for p in processes().values() if ref.id in p.command], "it goes on"
            )
        finally:
            await engine.close()

    asyncio.run(asyncio.wait_for(main(), 120))


def test_without_runsc_the_engine_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(Unavailable, match="install gVisor"):
        GvisorEngine(folder / "gvisor")
