"""The copy of pods follows a scripted API: events, breaks, positions that are too old."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest

from aenv.errors import Unavailable

pytest.importorskip("kubernetes_asyncio")

from aenv.engines.kubernetes.cluster_api import ApiError
from aenv.engines.kubernetes.pod_watch import PodWatch


def pod(name: str, version: int, phase: str = "Pending") -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "status": {"phase": phase}}


class ScriptedApi:
    """Answers lists from ``lists``, and watches with the events, errors and ends in ``script``."""

    def __init__(self, *lists: list[dict[str, Any]]) -> None:
        self.lists = list(lists)
        self.script: asyncio.Queue[Any] = asyncio.Queue()
        self.positions: list[str] = []
        self.on_list: Callable[[], None] = lambda: None

    async def request(self, method: str, kind: str, query: Mapping[str, str]) -> dict[str, Any]:
        items = self.lists.pop(0)
        self.on_list()
        return {"metadata": {"resourceVersion": str(100 - len(self.lists))}, "items": items}

    async def watch(self, kind: str, query: Mapping[str, str], seconds: int) -> AsyncIterator[dict[str, Any]]:
        self.positions.append(query["resourceVersion"])
        while (step := await self.script.get()) is not None:
            if isinstance(step, Exception):
                raise step
            yield {"type": step[0], "object": step[1]}


def watching(api: ScriptedApi, use: Callable[[PodWatch], Awaitable[None]]) -> None:
    async def main() -> None:
        watch = PodWatch(api, "")  # type: ignore[arg-type]
        await watch.open()
        try:
            await use(watch)
        finally:
            await watch.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def has_phase(phase: str) -> Callable[[dict[str, Any] | None], bool | None]:
    return lambda found: True if found is not None and found["status"]["phase"] == phase else None


def is_gone(found: dict[str, Any] | None) -> bool | None:
    return True if found is None else None


def test_a_waiter_is_told_of_a_change_and_of_the_end() -> None:
    api = ScriptedApi([pod("a", 1)])

    async def use(watch: PodWatch) -> None:
        api.script.put_nowait(("MODIFIED", pod("a", 101, "Running")))
        await asyncio.gather(*(watch.until("a", has_phase("Running")) for _ in range(2)))
        api.script.put_nowait(("DELETED", pod("a", 102, "Running")))
        await watch.until("a", is_gone)
        assert watch.all() == []

    watching(api, use)


def test_a_broken_watch_goes_on_at_the_position_of_the_last_bookmark() -> None:
    api = ScriptedApi([])

    async def use(watch: PodWatch) -> None:
        api.script.put_nowait(("BOOKMARK", pod("", 150)))
        api.script.put_nowait(Unavailable("the connection broke"))
        api.script.put_nowait(("ADDED", pod("a", 151, "Running")))
        await watch.until("a", has_phase("Running"))
        assert api.positions == ["100", "150"]

    watching(api, use)


def test_a_position_that_is_too_old_leads_to_a_new_list() -> None:
    api = ScriptedApi([pod("a", 1), pod("b", 2)], [pod("b", 3, "Running")])

    async def use(watch: PodWatch) -> None:
        api.script.put_nowait(ApiError("too old resource version", 410))
        await asyncio.gather(watch.until("a", is_gone), watch.until("b", has_phase("Running")))
        assert api.lists == []

    watching(api, use)


def test_a_list_does_not_remove_a_pod_that_was_created_meanwhile() -> None:
    api = ScriptedApi([], [], [pod("b", 9)])

    async def use(watch: PodWatch) -> None:
        api.on_list = lambda: watch.add(pod("new", 99))
        api.script.put_nowait(ApiError("too old resource version", 410))
        await watch.until("new", has_phase("Pending"))
        api.on_list = lambda: None
        api.script.put_nowait(ApiError("too old resource version", 410))
        await watch.until("b", has_phase("Pending"))
        assert watch.get("new") is None  # now it was known before the list was requested

    watching(api, use)


def test_a_late_answer_to_a_creation_does_not_revive_a_deleted_pod() -> None:
    api = ScriptedApi([])

    async def use(watch: PodWatch) -> None:
        api.script.put_nowait(("ADDED", pod("a", 101)))
        await watch.until("a", has_phase("Pending"))
        api.script.put_nowait(("DELETED", pod("a", 102)))
        await watch.until("a", is_gone)
        watch.add(pod("a", 101))
        assert watch.get("a") is None

    watching(api, use)
