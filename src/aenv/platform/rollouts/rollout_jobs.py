"""Rollouts that run in the platform, each for the caller that asked for it and with that caller's rights.

A job uses the platform as any client does, over a socket of its own and with its caller's token: quotas, the fair queue
and ownership are those of instances. Every episode is in the platform's store of trajectories, under a run whose id
follows from the caller and the request id; so a request that comes again, also after a restart, repeats nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import threading
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic_core import to_json

from aenv.errors import AEnvError, Conflict, NotFound, RateLimited, TooLarge
from aenv.platform.access.platform_tokens import Caller
from aenv.platform.instances.requests.request_checks import check_labels
from aenv.platform.rollouts.model_access import ModelAccess
from aenv.platform.trajectories.episode_archive import EpisodeArchive
from aenv.platform.trajectories.rollout_archiver import RolloutArchiver
from aenv.rollout import EpisodeResult, ModelEndpoint, Price, Progress, Rollout, rollout
from aenv.schema.rollouts import ModelSpec, RolloutInfo, RolloutRequest
from aenv.schema.trajectories import MAX_EPISODE_BYTES
from aenv.tracing.logging import getLogger
from aenv.trajectory import TrajectoryStore

log = getLogger("rollouts")

PER_CALLER = 32
"""Rollouts of one caller that may run at the same time."""
ABANDONED_SECONDS = 600.0
"""A rollout that nobody has listened to for so long is cancelled, unless it is detached."""
MOST_WAITING = 128 << 20
"""Bytes of the requests of all running rollouts of one caller."""
ENDED_PER_CALLER = 256
"""Finished rollouts of one caller that stay in memory."""
MOST_KEPT = 16 << 10
"""Characters of a reward or an error that stay in memory. A longer reward is read from the store."""
KEPT_BYTES = 16 << 20
"""Rewards and errors of one rollout that stay in memory up to `MOST_KEPT` each; of further ones, `SHORT`."""
SHORT = 200
KEPT_SECONDS = 3600.0
"""Seconds for which a finished rollout stays in memory; its episodes are in the store for longer."""
CHECK_SECONDS = 15.0

State = Literal["running", "done", "cancelled", "failed"]


class RolloutJob:
    """A rollout that the platform runs for its owner."""

    def __init__(
        self,
        id: str,
        owner: str,
        request: RolloutRequest,
        made: Rollout,
        size: int,
        archiver: RolloutArchiver | None = None,
        idle: Rollout | None = None,
    ) -> None:
        """``size``: bytes of the request. ``archiver``: stores its episodes for good.

        ``idle``: the same tasks with an agent that does nothing.
        """
        self._archiver = archiver
        self._do_nothing: float | None = None
        self.id, self.owner, self.request, self.size = id, owner, request, size
        self.fingerprint = _fingerprint(request)
        self.results: list[EpisodeResult] = []
        self.large: set[int] = set()
        """Positions of the results whose rewards are only in the store."""
        self._kept = 0
        self.numbering = secrets.token_hex(4)
        """Stands for the numbers of these results. A platform that has restarted numbers them in another order."""
        self.interrupted = False
        """True if it stopped because the platform stops. The same request continues it."""
        self.state: State = "running"
        self.error = ""
        self.listeners = 0
        self.quiet_since = time.monotonic()
        self.ended_at: float | None = None
        self._created = time.time()
        self._progress: Callable[[], Progress] = lambda: made.progress
        self._changed = asyncio.Event()
        self._cancelled = False
        self._task = asyncio.create_task(self._run(made, idle))

    async def _run(self, made: Rollout, idle: Rollout | None) -> None:
        try:
            async with aclosing(made.results()) as results:
                async for result in results:
                    self._keep(result)
                    self._wake()
                    self._archive(result)
                    await self._check_space()
            if idle is not None:
                await self._run_idle(idle)
            await self._archive_rest()
            self.state = "done"
        except asyncio.CancelledError:
            self.state = "cancelled"
            if not self._cancelled:
                raise
        except AEnvError as error:
            await self._archive_rest()
            self.state, self.error = "failed", error.message
        except Exception as error:
            log.exception("rollout %s failed", self.id)
            self.state, self.error = "failed", f"{type(error).__name__}: {error}"
        finally:
            last = made.progress
            self._progress = lambda: last  # not the tasks, which may be large
            self.request = self.request.model_copy(update={"task": None, "tasks": None})
            self.ended_at = time.monotonic()
            self._wake()

    async def _run_idle(self, idle: Rollout) -> None:
        """Find out what doing nothing gets. Without an answer, the rollout is as good as before."""
        scores = []
        try:
            async with aclosing(idle.results()) as results:
                async for result in results:
                    self._archive(result)
                    await self._check_space()
                    scores += [] if result.score is None else [result.score]
        except AEnvError as error:
            log.warning("rollout %s has no baseline: %s", self.id, error.message)
            return
        self._do_nothing = sum(scores) / len(scores) if scores else None

    def _archive(self, result: EpisodeResult) -> None:
        if self._archiver is not None and result.episode:
            self._archiver.add(result.episode)

    async def _check_space(self) -> None:
        """Raise an error if the owner's episodes take more space than they may: a rollout may have millions."""
        if self._archiver is None:
            return
        if self.id in self._archiver.too_large or idle_run(self.id) in self._archiver.too_large:
            raise TooLarge(f"the events of an episode have at most {MAX_EPISODE_BYTES >> 20} MiB")
        await self._archiver.archive.check_quota(self.owner)

    async def _archive_rest(self) -> None:
        if self._archiver is not None:
            await self._archiver.finish(self.id)
            if self.request.baseline:
                await self._archiver.finish(idle_run(self.id))

    def _keep(self, result: EpisodeResult) -> None:
        """Remember a result, but for texts of any length that the environment may have chosen."""
        most = MOST_KEPT if self._kept < KEPT_BYTES else SHORT
        size = len(to_json(result.reward))
        if result.episode and size > most:
            self.large.add(len(self.results))
            result, size = replace(result, reward=None), 0
        result = replace(result, error=result.error[:most])
        self._kept += size + len(result.error)
        self.results.append(result)

    async def cancel(self) -> None:
        """Stop what runs, and wait until its instances are released."""
        if not self._task.done():
            self._cancelled = True
            self._task.cancel()
        await asyncio.wait({self._task})
        if self._cancelled:
            await self._archive_rest()

    async def follow(self, after: int) -> AsyncIterator[tuple[int, EpisodeResult] | None]:
        """Yield results from number ``after`` on, as they come; None every 15 seconds without one."""
        self.listeners += 1
        try:
            while True:
                while after < len(self.results):
                    yield after, self.results[after]
                    after += 1
                if self.state != "running":
                    return
                changed = self._changed
                try:
                    async with asyncio.timeout(CHECK_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    yield None
        finally:
            self.listeners -= 1
            self.quiet_since = time.monotonic()

    def info(self) -> RolloutInfo:
        """Return the state."""
        scores = [result.score for result in self.results if result.score is not None]
        progress = self._progress()
        return RolloutInfo(
            id=self.id,
            state=self.state,
            environment=self.request.environment,
            owner=self.owner,
            total=progress.total,
            done=len(self.results),
            running=progress.running if self.state == "running" else 0,
            outcomes=dict(Counter(result.outcome for result in self.results)),
            mean_reward=sum(scores) / len(scores) if scores else None,
            do_nothing=self._do_nothing,
            error=self.error[:MOST_KEPT],
            labels=self.request.labels,
            created_at=self._created,
        )

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class RolloutJobs:
    """All rollouts of this server."""

    def __init__(self, folder: Path, address: str, models: ModelAccess, archive: EpisodeArchive | None = None) -> None:
        """``folder``: records of what runs; ``address``: where this platform is reached from itself.

        ``archive``: where episodes are kept for good.
        """
        self._folder = folder
        self._address = address
        self._models = models
        self._jobs: dict[str, RolloutJob] = {}
        self._opened: TrajectoryStore | None = None
        self._opening = threading.Lock()
        self._watching: asyncio.Task[None] | None = None
        self.archiver = None if archive is None else RolloutArchiver(archive, lambda: self.store)

    @property
    def store(self) -> TrajectoryStore:
        """The store in which rollouts record, opened on first use."""
        with self._opening:
            if self._opened is None:
                self._opened = TrajectoryStore.open(self._folder)
            return self._opened

    def start(self, request: RolloutRequest, caller: Caller, token: str | None, size: int = 0) -> RolloutJob:
        """Start a rollout, or return the one that this request has started before. ``size``: bytes of the request.

        Raises:
            Conflict: the request id belongs to another request.
            RateLimited: the caller has too many.
            Forbidden: the model's endpoint is not allowed.
            TooLarge: the labels are too large.
        """
        check_labels(request.labels)
        id = job_id(caller.name, request.request_id or uuid.uuid4().hex)
        known = self._jobs.get(id)
        if known is not None and known.fingerprint != _fingerprint(request):
            raise Conflict(f"request_id {request.request_id!r} belongs to another rollout")
        if known is not None and known.state in ("running", "done"):
            return known
        if request.model is not None:
            self._models.check(request.model.url)
        self._check_room(caller, size)
        common: dict[str, Any] = {
            "tasks": request.all_tasks(), "concurrency": request.concurrency or "auto", "limits": request.budget,
            "retries": request.retries, "seed": request.seed, "store": self.store, "limit": request.limit,
            "labels": {**request.labels, "owner": caller.name}, "aenv_url": self._address, "api_key": token,
        }  # fmt: skip
        made = rollout(
            request.environment,
            agent=request.agent,
            samples=request.samples,
            model=_endpoint(request.model),
            sampling=request.sampling,
            price=_price(request.model),
            run=id,
            **common,
        )
        idle = rollout(request.environment, agent="nop", run=idle_run(id), **common) if request.baseline else None
        job = self._jobs[id] = RolloutJob(id, caller.name, request, made, size, self.archiver, idle)
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        return job

    def _check_room(self, caller: Caller, size: int) -> None:
        """Raise RateLimited if the caller's rollouts take too much memory; forget the oldest finished ones."""
        own = [job for job in self._jobs.values() if job.owner == caller.name]
        running = [job for job in own if job.state == "running"]
        if len(running) >= PER_CALLER:
            message = f"{len(running)} of your rollouts are running; at most {PER_CALLER} may"
            raise RateLimited(message, details={"retry_after": 5})
        if running and sum(job.size for job in running) + size > MOST_WAITING:
            message = f"the tasks of your running rollouts have over {MOST_WAITING >> 20} MiB; wait for some of them"
            raise RateLimited(message, details={"retry_after": 5})
        ended = [job for job in own if job.ended_at is not None and not job.listeners]
        for job in ended[: max(0, len(ended) - ENDED_PER_CALLER + 1)]:
            del self._jobs[job.id]

    def get(self, id: str, caller: Caller) -> RolloutJob:
        """Return a rollout that the caller may see. Raises NotFound."""
        job = self._jobs.get(id)
        if job is None or not caller.may_see(job.owner):
            raise NotFound(f"no rollout {id!r} here; repeat the request with its request_id to get its results again")
        return job

    def of(self, caller: Caller) -> list[RolloutJob]:
        """Return the rollouts that the caller may see, newest first."""
        return [job for job in reversed(self._jobs.values()) if caller.may_see(job.owner)]

    async def close(self) -> None:
        """Stop all rollouts. Their callers are not told that they were cancelled, since they can be continued."""
        if self._watching is not None:
            self._watching.cancel()
        for job in self._jobs.values():
            job.interrupted = job.state == "running"
        await asyncio.gather(*(job.cancel() for job in self._jobs.values()))
        if self.archiver is not None:
            await self.archiver.close()
        if self._opened is not None:
            await asyncio.to_thread(self._opened.close)

    async def _watch(self) -> None:
        """Cancel rollouts that nobody listens to, and forget old ones."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            now = time.monotonic()
            for job in list(self._jobs.values()):
                if job.ended_at is not None:
                    if now - job.ended_at > KEPT_SECONDS and not job.listeners:
                        del self._jobs[job.id]
                elif not job.request.detached and not job.listeners and now - job.quiet_since > ABANDONED_SECONDS:
                    log.info("rollout %s is cancelled: nobody has listened for %g s", job.id, ABANDONED_SECONDS)
                    await job.cancel()


def job_id(owner: str, request_id: str) -> str:
    """Return the id of a rollout: the same for the same caller and request."""
    both = f"{owner}\0{request_id}".encode("utf-8", "surrogatepass")
    return f"ro-{hashlib.sha256(both).hexdigest()[:24]}"


def idle_run(id: str) -> str:
    """Return the id of the run that does nothing, where `aenv trajectory stats` looks for it."""
    return f"{id}-nop"


def _endpoint(spec: ModelSpec | None) -> ModelEndpoint | None:
    if spec is None:
        return None
    return ModelEndpoint(spec.name, spec.url, api=spec.api, key=spec.key, stream=spec.stream)


def _price(spec: ModelSpec | None) -> Price | None:
    return None if spec is None or spec.price is None else Price(spec.price.input, spec.price.output)


def _fingerprint(request: RolloutRequest) -> str:
    """Return a digest of what a rollout does; keys may change."""
    said = request.model_dump_json(exclude={"trace": True, "detached": True, "model": {"key"}})
    return hashlib.sha256(said.encode()).hexdigest()
