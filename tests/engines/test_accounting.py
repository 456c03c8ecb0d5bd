"""A sandbox's usage is known on every host, with control groups or without."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aenv.client.instance_client import InstanceClient
from aenv.engines.base import SandboxSpec
from aenv.engines.native import engine as engine_module
from aenv.engines.native.engine import NativeEngine
from aenv.http.url import ServerUrl
from aenv.isolation.limits import process_usage
from aenv.isolation.limits.cgroups import Cgroups
from tests.conftest import run

SOURCE = """
from aenv import register_tool

@register_tool
def work(seconds: float) -> None:
    import time
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="aenv-e-", dir="/tmp"))
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize("grouped", [True, False])
def test_the_engine_knows_cpu_memory_and_processes_of_a_sandbox(
    folder: Path, sandboxes: None, grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not grouped:  # a user who may create no control groups
        monkeypatch.setattr(engine_module, "Cgroups", lambda name: Cgroups(name, folder / "none"))
    project = folder / "project"
    project.mkdir()
    (project / "env.py").write_text(SOURCE)

    async def main() -> None:
        engine = NativeEngine(folder / "native")
        try:
            ref = await engine.start(SandboxSpec("x", project, project))
            client = InstanceClient(ServerUrl.parse(ref.data_url), token=ref.token)
            await client.call("/tools/work", {"seconds": 0}, timeout=60)
            before = engine.usage(ref)
            await client.call("/tools/work", {"seconds": 0.3}, timeout=60)
            client.close()
            after = engine.usage(ref)
            assert after["cpu_nanoseconds"] - before["cpu_nanoseconds"] >= 250_000_000
            assert 100_000 < after["memory_bytes"] < 500_000_000
            assert 1 <= after["processes"] < 10
        finally:
            await engine.close()
        assert engine.usage(ref) == {}

    run(main())


def test_no_process_uses_nothing(tmp_path: Path) -> None:
    assert process_usage.usage([]) == {}
    assert process_usage.usage([2**22 + 1]) == {}
    assert process_usage.members([tmp_path]) == []
    assert process_usage.listening_process(tmp_path / "no.sock") is None
