"""Versions of Python that are not tested take the plain way, which uses no private parts of CPython."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aenv.client.instance_client import InstanceClient
from aenv.engines.base import SandboxRef, SandboxSpec
from aenv.engines.native.engine import NativeEngine
from aenv.http.url import ServerUrl
from aenv.isolation.forking import cpython_internals

CODE = """
import asyncio, os, random, subprocess
from aenv import register_tool

handled = []
os.register_at_fork(after_in_child=lambda: handled.append(os.getpid()))
imported_in = os.getpid()

@register_tool
async def about() -> dict:
    await asyncio.sleep(0)
    return {
        "awaited": True,
        "imported_in": imported_in, "handled": len(handled), "number": os.environ.get("NUMBER"),
        "drawn": random.random(),
        "program": subprocess.run(["sh", "-c", "exit 7"]).returncode,
        "replaced": hasattr(subprocess._fork_exec, "__wrapped__"),
    }

"""


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13)])
def test_tested_versions_take_the_fast_way(version: tuple[int, int]) -> None:
    assert cpython_internals.is_tested(version)


@pytest.mark.parametrize("version", [(3, 10), (3, 14), (3, 15), (4, 0)])
def test_other_versions_take_the_plain_way(version: tuple[int, int]) -> None:
    assert not cpython_internals.is_tested(version)


def test_other_implementations_take_the_plain_way() -> None:
    assert not cpython_internals.is_tested((3, 11), "pypy")


@pytest.fixture
def folder(sandboxes: None) -> Iterator[Path]:
    """A folder with a path that is short enough for sockets."""
    made = Path(tempfile.mkdtemp(prefix="aenv-e-", dir="/tmp"))
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize("plain", [True, False])
def test_forks_of_a_preloaded_parent_work_either_way(folder: Path, plain: bool) -> None:
    project = folder / "project"
    project.mkdir()
    (project / "env.py").write_text(CODE)

    async def main() -> None:
        engine = NativeEngine(folder / "native", pool=0, plain=plain)
        try:
            refs = [await engine.start(SandboxSpec("x@1.0.0", project, project, {"NUMBER": "7"})) for _ in range(6)]
            found = [await _call(ref, "about") for ref in refs]
        finally:
            await engine.close()
        forks = [each for each in found if each["imported_in"] != 1]  # an instance's first process is 1
        assert len(forks) >= 3
        assert all(each["handled"] == 1 for each in forks)
        assert all(each["number"] == "7" and each["program"] == 7 for each in found)
        assert len({each["drawn"] for each in found}) == len(found)
        assert {each["replaced"] for each in found} == {not plain}
        assert all(each["awaited"] for each in found)

    asyncio.run(asyncio.wait_for(main(), 60))


async def _call(ref: SandboxRef, tool: str) -> Any:
    client = InstanceClient(ServerUrl.parse(ref.data_url), token=ref.token)
    try:
        answer = await client.call(f"/tools/{tool}", {}, timeout=60)
    finally:
        client.close()
    return json.loads(answer["content"][0]["text"])
