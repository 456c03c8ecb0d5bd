"""Rollouts spread over a Ray cluster: actors play episodes, and each node runs them on its own local platform.

An actor reserves a CPU and plays several episodes at once, most of which wait for a model: a process for each would
cost seconds to start, and some 60 MB. Ray never repeats a call by itself here (`max_task_retries=0`), since it may have
run. An episode whose actor or node died is an infra failure: it is run again in a new instance, and if that is not
possible it has no reward. Each episode's events come back with its result and are recorded where the rollout was
started.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import tempfile
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aenv.adapters.agents.agent_tools import framework
from aenv.adapters.trainers.episodes import EpisodeSource, Tasks
from aenv.errors import UsageError
from aenv.rollout.endpoint import find_model
from aenv.rollout.result import EpisodeResult
from aenv.rollout.runs.run_progress import Progress
from aenv.rollout.task_sources import find_tasks
from aenv.schema.tasks import Task
from aenv.trajectory import EpisodeKey, RunRecord, TrajectoryStore
from aenv.trajectory.formats.exchange import import_file

RETRIES = 2
CPUS = 0.25
"""Share of a CPU that an episode needs: most of it waits for a model."""
POLL_SECONDS = 1.0


class _Actors:
    """The actors of a rollout, and how many episodes each plays. Those that died are replaced where there is room."""

    def __init__(self, ray: Any, common: Mapping[str, Any]) -> None:
        self._ray, self._common = ray, dict(common)
        self._starting: dict[Any, Any] = {}
        self._playing: dict[Any, int] = {}

    @property
    def starting(self) -> list[Any]:
        """References that are ready when an actor is."""
        return list(self._starting)

    def keep(self, wanted: int, cpus: float) -> None:
        """Start actors until there are as many as wanted."""
        remote = self._ray.remote(EpisodeActor)
        for _ in range(wanted - len(self._starting) - len(self._playing)):
            actor = remote.options(
                num_cpus=cpus, scheduling_strategy="SPREAD", max_restarts=0, max_task_retries=0, max_concurrency=10_000
            ).remote(self._common)
            self._starting[actor.ready.remote()] = actor

    def started(self, reference: Any) -> None:
        """Use an actor from now on, unless it died while it was started."""
        actor = self._starting.pop(reference)
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.get(reference)
            self._playing[actor] = 0

    def take(self, most: int) -> Any | None:
        """Return the actor with the fewest episodes, one of which it gets; None if all have as many as they may."""
        free = [actor for actor, count in self._playing.items() if count < most]
        actor = min(free, key=self._playing.__getitem__, default=None)
        if actor is not None:
            self._playing[actor] += 1
        return actor

    def give_back(self, actor: Any) -> None:
        """Count one episode less."""
        if actor in self._playing:
            self._playing[actor] -= 1

    def drop(self, actor: Any) -> None:
        """Give up an actor that could not be reached, and make sure that it plays nothing any more."""
        if self._playing.pop(actor, None) is not None:
            self._ray.kill(actor)

    def close(self) -> None:
        """End all actors, and with them what they play."""
        for actor in [*self._starting.values(), *self._playing]:
            self._ray.kill(actor)


@dataclass(frozen=True, slots=True)
class _Work:
    """An attempt to send to a node."""

    task: Task
    sample: int
    attempt: int = 0


class RayRollout:
    """A rollout on a Ray cluster. Iterate over `results`, or use ``async for``, to run it.

    Args:
        environment: ``name``, ``name@version``, or a path that exists on every node.
        tasks: As for `aenv.rollout.rollout`.
        agent: Name of an agent, or a function that Ray can pickle.
        samples: Episodes for each task.
        model: Name of a model, as for `aenv.rollout.rollout`; every node asks it itself.
        sampling: Sampling parameters of the model.
        limits: Budgets of each episode, where its task has none.
        retries: Maximum number of retries of an episode that failed for infra reasons.
        concurrency: Maximum number of episodes at the same time; ``"auto"``: what the cluster has room for.
        seed: Seed of the rollout.
        run: Name of the run. If it exists, what has finished is not repeated.
        store: Where to record; default: the user's store of trajectories.
        limit: Maximum number of tasks.
        score: Name of the number that counts in a reward that is a dict.
        address: Address of the cluster; default: ``RAY_ADDRESS``, else a cluster on this machine.
        **options: Other arguments of `Environment`.

    Example:
        ```python
        async for episode in RayRollout("notes@1.0.0", model="chat:policy@http://model:8000/v1", samples=8):
            print(episode.task, episode.outcome, episode.reward)
        ```
    """

    def __init__(
        self,
        environment: str = "",
        *,
        tasks: Tasks = None,
        agent: Any = "loop",
        samples: int = 1,
        model: str | None = None,
        sampling: Mapping[str, Any] | None = None,
        limits: Mapping[str, Any] | None = None,
        retries: int = RETRIES,
        concurrency: int | str = "auto",
        seed: int | None = None,
        run: str | None = None,
        store: TrajectoryStore | Path | None = None,
        limit: int | None = None,
        score: str | None = None,
        address: str | None = None,
        **options: Any,
    ) -> None:
        self._ray = framework("ray", "ray")
        if samples < 1 or retries < 0:
            raise UsageError("samples must be at least 1, and retries at least 0")
        self.run = run or f"run-{uuid.uuid4().hex[:12]}"
        self.progress = Progress(0)
        """Counts so far."""
        self._tasks = find_tasks(tasks, environment, options=options, score=score)
        self._common = {
            "environment": environment, "agent": agent, "limits": dict(limits or {}), "score": score, "seed": seed,
            "run": self.run, **options,
        }  # fmt: skip
        self._model, self._sampling = model, dict(sampling or {})
        self._samples, self._retries, self._limit = samples, retries, limit
        self._concurrency = concurrency if isinstance(concurrency, int) else None
        self._store, self._address = store, address

    def __aiter__(self) -> AsyncGenerator[EpisodeResult, None]:
        return self.results()

    async def results(self) -> AsyncGenerator[EpisodeResult, None]:
        """Run the episodes that are left, and yield the result of each when it ends."""
        if not self._ray.is_initialized():
            await asyncio.to_thread(self._ray.init, address=self._address, log_to_driver=False, logging_level="error")
        tasks = list(await self._tasks.tasks())[: self._limit]
        own = not isinstance(self._store, TrajectoryStore)
        store = TrajectoryStore.open(self._store) if not isinstance(self._store, TrajectoryStore) else self._store
        running: dict[Any, tuple[_Work, Any]] = {}
        actors = _Actors(self._ray, self._common)
        try:
            store.begin_run(RunRecord(self.run, title=str(self._common["environment"]), request={"on": "ray"}))
            done = store.finished(self.run)
            left = deque(
                _Work(task, sample)
                for task in tasks
                for sample in range(self._samples)
                if (task.id, sample) not in done
            )
            self.progress = Progress(len(left))
            while left or running:
                room, count, cpus = self._size()
                actors.keep(min(count, len(left) + len(running)), cpus)
                while left and len(running) < room and (actor := actors.take(math.ceil(room / count))) is not None:
                    work = left.popleft()
                    running[self._sent(actor, work)] = work, actor
                self.progress.running = len(running)
                for reference in await asyncio.to_thread(self._waited, [*running, *actors.starting]):
                    if reference not in running:
                        actors.started(reference)
                        continue
                    work, actor = running.pop(reference)
                    actors.give_back(actor)
                    result = await asyncio.to_thread(self._received, store, reference, work, actor, actors)
                    if not result.final:
                        self.progress.retries += 1
                        left.append(_Work(work.task, work.sample, work.attempt + 1))
                        continue
                    self.progress.finished(result)
                    yield result
        finally:
            actors.close()
            await self._tasks.close()
            if own:
                store.close()

    def _size(self) -> tuple[int, int, float]:
        """Return how many episodes are played at once, by how many actors, and the CPUs that each reserves."""
        total = float(self._ray.cluster_resources().get("CPU", 1.0))
        room = self._concurrency or max(1, int(total / CPUS))
        return room, max(1, min(int(total), math.ceil(room * CPUS))), min(1.0, total)

    def _waited(self, references: list[Any]) -> list[Any]:
        """Return the references that are ready: wait for the first, and take the others that are."""
        ready, _ = self._ray.wait(references, timeout=POLL_SECONDS)
        if not ready:
            return []
        found, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        return list(found or ready)

    def _sent(self, actor: Any, work: _Work) -> Any:
        left = max(0, self._retries - work.attempt)
        return actor.play.remote(work.task.as_row(), work.sample, work.attempt, left, self._model, self._sampling)

    def _received(
        self, store: TrajectoryStore, reference: Any, work: _Work, actor: Any, actors: _Actors
    ) -> EpisodeResult:
        """Return the result of an attempt, and record it; that of a dead actor is an infra failure."""
        final = work.attempt >= self._retries
        try:
            found, lines = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            if isinstance(error, self._ray.exceptions.RayActorError):
                actors.drop(actor)
            return self._lost(store, work, f"the Ray actor failed: {type(error).__name__}", final)
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
            Path(file.name).write_bytes(lines)
            stored = import_file(store, Path(file.name), "events")
        return EpisodeResult(**{**found, "episode": stored[-1]})

    def _lost(self, store: TrajectoryStore, work: _Work, why: str, final: bool) -> EpisodeResult:
        key = EpisodeKey(self.run, work.task.id, work.sample, work.attempt)
        about = {"environment": {"name": str(self._common["environment"])}, "task": work.task.public().as_row()}
        recorder = store.record(key, about)
        recorder.end("infra", final=final, fault="infra", error=why)
        return EpisodeResult(
            work.task.id, work.sample, "infra", error=why, fault="infra", episode=recorder.episode_id, run=self.run,
            attempt=work.attempt, final=final,
        )  # fmt: skip


class EpisodeActor:
    """Plays episodes in this process, many at once, on this machine's local platform.

    Failures of an instance are retried here; the death of this process is left to the rollout.
    """

    def __init__(self, common: dict[str, Any]) -> None:
        self._common = common

    async def ready(self) -> None:
        """Return when the process has started."""

    async def play(
        self, row: dict[str, Any], sample: int, attempt: int, retries: int, model: str | None, sampling: Any
    ) -> tuple[dict[str, Any], bytes]:
        """Play one episode; return the result and the events."""
        with tempfile.TemporaryDirectory() as folder, TrajectoryStore.open(Path(folder)) as store:
            source = EpisodeSource(**self._common, tasks=[row], store=store)
            task = (await source.tasks())[0]
            result = await source.play(
                task, model=find_model(model), sampling=sampling, retries=retries, sample=sample, attempt=attempt
            )
            attempts = [each.id for each in store.all_episodes() if each.id != result.episode]
            return asdict(result), b"\n".join(line for id in [*attempts, result.episode] for line in store.lines(id))
