"""Storages of services that the engine keeps, and not a folder of the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aenv.engines.base import Capabilities, Engine, Exit, SandboxRef, SandboxSpec
from aenv.errors import Conflict, InvalidArguments
from aenv.platform.services.storages import Storages
from aenv.storage.open_url import open_store
from tests.conftest import run


class KeepingEngine(Engine):
    """Keeps storages, and runs nothing."""

    capabilities = Capabilities(storages=True)

    def __init__(self) -> None:
        self.storages: dict[str, int] = {}

    async def make_storage(self, name: str, size: int) -> str:
        made = f"{name}-{len(self.storages)}"
        self.storages[made] = size
        return made

    async def remove_storage(self, storage: str) -> None:
        self.storages.pop(storage, None)

    async def start(self, spec: SandboxSpec) -> SandboxRef:
        raise NotImplementedError

    async def poll(self, ref: SandboxRef) -> Exit | None:
        return None

    async def stop(self, ref: SandboxRef) -> None:
        pass

    async def running(self) -> AsyncIterator[SandboxRef]:
        for ref in ():
            yield ref

    async def close(self) -> None:
        pass


def test_an_engine_keeps_storages_that_no_machine_owns(tmp_path: Path) -> None:
    async def main() -> None:
        engine = KeepingEngine()
        store = open_store(str(tmp_path / "platform.db"))
        try:
            storages = Storages(store, tmp_path / "storage", engine)
            made = await storages.take("ana", "notes", "1Mi", "s")
            assert (made.host, storages.host, engine.storages) == ("", "", {made.folder: 1 << 20})
            assert await storages.used(made) == 0
            assert not (tmp_path / "storage").exists()
            with pytest.raises(InvalidArguments, match="cannot grow"):
                await storages.grow("ana", "notes", "2Mi")
            await storages.release("ana", "notes", "s", delete=False)
            other = Storages(store, tmp_path / "storage", engine)  # of another server
            assert (await other.take("ana", "notes", None, "t")).folder == made.folder
            with pytest.raises(Conflict, match="is in the cluster, not on"):
                await Storages(store, tmp_path / "storage").take("ana", "notes", None, "t")
            await other.release("ana", "notes", "t", delete=True)
            assert engine.storages == {}
        finally:
            await store.close()

    run(main())
