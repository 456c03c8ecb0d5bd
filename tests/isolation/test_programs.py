"""Instances that are started by exec instead of fork: ``deployConfig.fork`` is false."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from aenv.client.instance_client import InstanceClient
from aenv.engines.base import SandboxRef, SandboxSpec
from aenv.engines.native.engine import NativeEngine
from aenv.http.url import ServerUrl
from aenv.sdk.blocking import SyncEnvironment
from tests.isolation.conftest import make_project

CODE = """
import os
from aenv import private, register_tool

@register_tool
def about() -> dict:
    lines = [line for line in open("/proc/self/status") if line.startswith(("CapEff", "Seccomp:", "NoNewPrivs"))]
    maps = [line.split("-")[0] for line in open("/proc/self/maps") if "[stack]" in line or "[heap]" in line]
    return {
        "hash": hash("seed"), "layout": maps, "locked": "".join(lines).split(), "pid": os.getpid(),
        "variable": os.environ.get("NUMBER"), "secret": private("secret.txt").read_text(),
        "found": os.path.exists("/app/private") or "AENV_WITHHELD" in os.environ,
    }
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = make_project(tmp_path, CODE, name="program", fork=False)
    (made / "private").mkdir()
    (made / "private" / "secret.txt").write_text("42")
    return made


def test_unforked_instances_have_different_address_layouts_and_hash_seeds(project: Path) -> None:
    with ExitStack() as open_ones:
        envs = [
            open_ones.enter_context(SyncEnvironment(str(project), environment_variables={"NUMBER": str(number)}))
            for number in range(4)
        ]
        told = [env.call_tool("about", {}, 60).data for env in envs]
    assert len({one["hash"] for one in told}) == 4
    assert len({tuple(one["layout"]) for one in told}) == 4
    for number, one in enumerate(told):
        assert one["locked"] == ["CapEff:", "0" * 16, "NoNewPrivs:", "1", "Seccomp:", "2"]
        assert one["pid"] == 1
        assert one["variable"] == str(number)
        assert one["secret"] == "42"
        assert not one["found"]


@pytest.mark.parametrize("fork", [True, False])
def test_a_platform_can_forbid_forks_for_all_projects(project: Path, folder: Path, fork: bool) -> None:
    async def main() -> None:
        engine = NativeEngine(folder / "native", pool=0, fork=fork)
        spec = SandboxSpec("mine@1.0.0", project, project)
        try:
            hashes = [await _hash(await engine.start(spec)) for _ in range(3)]
        finally:
            await engine.close()
        assert len(set(hashes)) == (1 if fork else 3)

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.fixture
def folder(sandboxes: None) -> Iterator[Path]:
    """A folder with a path that is short enough for sockets."""
    made = Path(tempfile.mkdtemp(prefix="aenv-e-", dir="/tmp"))
    yield made
    shutil.rmtree(made)


async def _hash(ref: SandboxRef) -> int:
    client = InstanceClient(ServerUrl.parse(ref.data_url), token=ref.token)
    try:
        answer = await client.call("/tools/about", {}, timeout=60)
    finally:
        client.close()
    return int(json.loads(answer["content"][0]["text"])["hash"])
