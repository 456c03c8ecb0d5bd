"""Rollouts spread over a Ray cluster: an episode is a Ray task, and each node runs it on its own local platform.

Ray never repeats a task by itself here (`max_retries=0`), since it may have run. An episode whose worker or node died
is an infra failure: it is run again in a new instance, and if that is not possible it has no reward. Each episode's
events come back with its result and are recorded where the rollout was started.
"""

from __future__ import annotations

import asyncio
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
"""Share of a CPU that an episode reserves: most of it waits for a model."""
POLL_SECONDS = 1.0


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
        running: dict[Any, _Work] = {}
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
                while left and len(running) < self._room():
                    work = left.popleft()
                    running[self._sent(work)] = work
                self.progress.running = len(running)
                ready, _ = await asyncio.to_thread(self._ray.wait, list(running), timeout=POLL_SECONDS)
                for reference in ready:
                    work = running.pop(reference)
                    result = await asyncio.to_thread(self._received, store, reference, work)
                    if not result.final:
                        self.progress.retries += 1
                        left.append(_Work(work.task, work.sample, work.attempt + 1))
                        continue
                    self.progress.finished(result)
                    yield result
        finally:
            for reference in running:
                self._ray.cancel(reference, force=True)
            await self._tasks.close()
            if own:
                store.close()

    def _room(self) -> int:
        if self._concurrency is not None:
            return self._concurrency
        return max(1, int(self._ray.cluster_resources().get("CPU", 1) / CPUS))

    def _sent(self, work: _Work) -> Any:
        remote = self._ray.remote(max_retries=0, num_cpus=CPUS, scheduling_strategy="SPREAD")(play_episode)
        left = max(0, self._retries - work.attempt)
        row = work.task.as_row()
        return remote.remote(self._common, row, work.sample, work.attempt, left, self._model, self._sampling)

    def _received(self, store: TrajectoryStore, reference: Any, work: _Work) -> EpisodeResult:
        """Return the result of an attempt, and record it; that of a dead worker is an infra failure."""
        final = work.attempt >= self._retries
        try:
            found, lines = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return self._lost(store, work, f"the Ray task failed: {type(error).__name__}", final)
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


def play_episode(
    common: dict[str, Any],
    row: dict[str, Any],
    sample: int,
    attempt: int,
    retries: int,
    model: str | None,
    sampling: Any,
) -> tuple[dict[str, Any], bytes]:
    """Play one episode in this process, on this machine's local platform; return the result and the events.

    Failures of an instance are retried here; the death of this process is left to the rollout.
    """

    async def play(folder: str) -> tuple[dict[str, Any], bytes]:
        with TrajectoryStore.open(Path(folder)) as store:
            source = EpisodeSource(**common, tasks=[row], store=store)
            task = (await source.tasks())[0]
            result = await source.play(
                task, model=find_model(model), sampling=sampling, retries=retries, sample=sample, attempt=attempt
            )
            attempts = [each.id for each in store.all_episodes() if each.id != result.episode]
            return asdict(result), b"\n".join(line for id in [*attempts, result.episode] for line in store.lines(id))

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(play(folder))
