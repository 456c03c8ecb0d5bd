"""A local copy of all pods of an engine, kept current by one watch.

One watch serves all instances: the API server is asked about no pod in particular, and not once per second. Bookmarks
keep the watch's position recent, so that it can be resumed after a break. The full list is read again when the
position is too old, and now and then in any case, in case an event was missed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import TypeVar

from aenv.engines.kubernetes.cluster_api import ApiError, ClusterApi
from aenv.engines.kubernetes.pod_status import Pod, name_of
from aenv.errors import EnvironmentError
from aenv.tracing.logging import getLogger

log = getLogger("kubernetes")

WATCH_SECONDS = 60
"""Length of one watch request. A connection that died in silence is noticed half a minute after that."""
RESYNC_SECONDS = 600.0
PAUSE_FIRST, PAUSE_MOST = 0.1, 5.0
_GONE = 410
T = TypeVar("T")


class PodWatch:
    """The pods that a label selector matches."""

    def __init__(self, api: ClusterApi, selector: str) -> None:
        self._api = api
        self._query = {"labelSelector": selector}
        self._pods: dict[str, Pod] = {}
        self._deleted: dict[str, None] = {}
        """Names of pods whose deletion was seen, so that a late answer to their creation does not revive them."""
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._version = ""
        self._listed = 0.0
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Read the list, and follow it from then on.

        Raises:
            ApiError, Unavailable: the list cannot be read.
        """
        await self._list()
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def close(self) -> None:
        """End the watch."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def get(self, name: str) -> Pod | None:
        """Return the pod of that name, as last seen."""
        return self._pods.get(name)

    def all(self) -> list[Pod]:
        """Return all pods, as last seen."""
        return list(self._pods.values())

    def add(self, pod: Pod) -> None:
        """Add a pod that was just created, unless the watch has seen it already."""
        name = name_of(pod)
        if name not in self._pods and name not in self._deleted:
            self._set(name, pod)

    async def until(self, name: str, decide: Callable[[Pod | None], T | None]) -> T:
        """Return the first result of ``decide`` that is not None. It is called with the newest state after changes."""
        changed = asyncio.Event()
        self._waiting.setdefault(name, set()).add(changed)
        try:
            while True:
                changed.clear()
                decided = decide(self._pods.get(name))
                if decided is not None:
                    return decided
                await changed.wait()
        finally:
            events = self._waiting[name]
            events.discard(changed)
            if not events:
                del self._waiting[name]

    async def _follow(self) -> None:
        pause = PAUSE_FIRST
        while True:
            try:
                if not self._version or time.monotonic() - self._listed > RESYNC_SECONDS:
                    await self._list()
                query = {**self._query, "resourceVersion": self._version}
                async for event in self._api.watch("pods", query, WATCH_SECONDS):
                    self._apply(event["type"], event["object"])
                    pause = PAUSE_FIRST
            except (ApiError, EnvironmentError) as error:
                if isinstance(error, ApiError) and error.answer == _GONE:
                    self._version = ""
                    continue
                log.warning("the watch of pods broke, and is tried again: %s", error.message)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, PAUSE_MOST)

    async def _list(self) -> None:
        before = set(self._pods)  # a pod that is added while the request is under way may be missing in the answer
        answer = await self._api.request("GET", "pods", query=self._query)
        found = {name_of(pod): pod for pod in answer.get("items") or ()}
        self._version = str(answer["metadata"]["resourceVersion"])
        self._listed = time.monotonic()
        for name, pod in found.items():
            self._set(name, pod)
        for name in before - set(found):
            self._forget(name)

    def _apply(self, kind: str, pod: Pod) -> None:
        self._version = str(pod["metadata"]["resourceVersion"])
        if kind == "BOOKMARK":
            return
        if kind == "DELETED":
            self._forget(name_of(pod))
        else:
            self._set(name_of(pod), pod)

    def _set(self, name: str, pod: Pod) -> None:
        self._pods[name] = pod
        self._wake(name)

    def _forget(self, name: str) -> None:
        self._pods.pop(name, None)
        self._deleted[name] = None
        while len(self._deleted) > 1024:
            del self._deleted[next(iter(self._deleted))]
        self._wake(name)

    def _wake(self, name: str) -> None:
        for event in self._waiting.get(name, ()):
            event.set()
