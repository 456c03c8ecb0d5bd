"""The periodic sweep: orphaned sandboxes are reaped, and nothing is measured without need."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aenv.engines.base import Capabilities, Engine, Exit, SandboxRef, SandboxSpec
from aenv.platform.instances.lifecycle import Instances
from aenv.platform.instances.orphan_sandboxes import GRACE_SECONDS, OrphanReaper
from aenv.platform.operations.metrics import Metrics
from aenv.schema.instances import EnvInstanceCreateRequest
from tests.conftest import run


class Counting(Engine):
    """An engine without sandboxes that counts measurements of usage; a real one asks the kernel each time."""

    capabilities = Capabilities(networks=frozenset(("loopback",)))

    def __init__(self) -> None:
        self.measured = 0
        self.refs: dict[str, SandboxRef] = {}

    async def start(self, spec: SandboxSpec) -> SandboxRef:
        ref = SandboxRef(str(len(self.refs)), "unix:/nowhere", "")
        self.refs[ref.id] = ref
        return ref

    async def poll(self, ref: SandboxRef) -> Exit | None:
        return None if ref.id in self.refs else Exit(0, "gone")

    async def stop(self, ref: SandboxRef) -> None:
        self.refs.pop(ref.id, None)

    async def running(self) -> AsyncIterator[SandboxRef]:
        for ref in list(self.refs.values()):
            yield ref

    async def close(self) -> None:
        self.refs.clear()

    def usage(self, ref: SandboxRef) -> dict[str, Any]:
        self.measured += 1
        return {"memory_bytes": 1}


def test_usage_is_measured_only_for_instances_that_are_shown(tmp_path: Path) -> None:
    (tmp_path / "env.py").write_text("")

    async def main() -> None:
        engine = Counting()
        instances = Instances(engine)
        request = EnvInstanceCreateRequest(envName="x", source=str(tmp_path))
        made = [await instances.create(request) for _ in range(20)]
        await instances.sweep()
        assert engine.measured == 0
        page = await instances.page("*", limit=3)
        assert engine.measured == 3
        assert [item.usage for item in page.items] == [{"memory_bytes": 1}] * 3
        assert (await instances.get(made[-1].id)).usage == {"memory_bytes": 1}
        assert engine.measured == 4
        await instances.close()

    run(main())


def test_an_orphaned_sandbox_is_stopped_after_the_grace_period() -> None:
    async def main() -> None:
        engine, metrics, now = Counting(), Metrics(), 0.0
        reaper = OrphanReaper(engine, metrics, lambda: now)
        owned, leaked = [await engine.start(SandboxSpec("x", Path(), Path())) for _ in range(2)]
        await reaper.reap({owned.id})
        now = GRACE_SECONDS
        await reaper.reap({owned.id})
        assert set(engine.refs) == {owned.id, leaked.id}
        now = GRACE_SECONDS + 1
        await reaper.reap({owned.id})
        assert set(engine.refs) == {owned.id}
        assert "leaks_found_total 1" in metrics.text()

    run(main())
