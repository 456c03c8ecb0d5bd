"""A batch reads the files of its project once: `SandboxKeys` reuses a scan for requests that came before it."""

from __future__ import annotations

import asyncio

from aenv.engines.base import SandboxRef, SandboxSpec
from aenv.platform.instances.lifecycle import Instances
from aenv.schema.instances import EnvInstanceCreateRequest
from tests.conftest import run
from tests.platform.between import NoSources, OneEngine


class RecordingEngine(OneEngine):
    """An engine that records what it is asked for."""

    def __init__(self) -> None:
        super().__init__("/nowhere")
        self.specs: list[SandboxSpec] = []

    async def start(self, spec: SandboxSpec) -> SandboxRef:
        self.specs.append(spec)
        return await super().start(spec)


def test_all_instances_of_a_batch_are_requested_at_the_same_time() -> None:
    async def main() -> None:
        engine = RecordingEngine()
        instances = Instances(engine, NoSources())
        for _ in range(2):
            made = await instances.create_many(EnvInstanceCreateRequest(envName="x"), 3)
            await asyncio.gather(*(instances.get(each.id, wait=30) for each in made))
        first, second = ({spec.requested_at for spec in part} for part in (engine.specs[:3], engine.specs[3:]))
        assert len(first) == len(second) == 1
        assert max(first) < min(second)
        await instances.close()

    run(main())
