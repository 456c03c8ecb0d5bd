"""Episodes for trainers: opened and driven step by step, or played to the end by an agent with the trainer's model."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import random
import threading
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from aenv.authoring.results import ToolResult
from aenv.errors import AEnvError, NotFound, UsageError
from aenv.rollout.agents.agent_names import find_agent
from aenv.rollout.attempt import Attempt, PendingAttempt, Plan
from aenv.rollout.endpoint import ModelEndpoint
from aenv.rollout.episode import Episode
from aenv.rollout.model import Model
from aenv.rollout.result import EpisodeResult
from aenv.rollout.runs.concurrency import Fixed
from aenv.rollout.runs.rollout_run import describe_agent
from aenv.rollout.task_set import TaskSet
from aenv.rollout.task_sources import find_tasks
from aenv.schema.tasks import Task, TaskLimits
from aenv.sdk.blocking import LoopThread
from aenv.trajectory import TrajectoryStore

Tasks = TaskSet | Sequence[Task | Mapping[str, Any]] | str | Path | None
T = TypeVar("T")
RETRIES = 2
_lock = threading.Lock()


class EpisodeFailed(AEnvError):
    """An episode has no reward, for a reason that is not the agent's. Leave it out; it is not a reward of 0.

    ``details["outcome"]`` is ``infra``, ``env``, ``user`` or, if the environment declares no reward, ``ok``.
    """

    code = "episode_failed"

    def __init__(self, result: EpisodeResult) -> None:
        why = result.error or "the environment gave no reward that is a number"
        details = {"outcome": result.outcome, "task": result.task, "episode": result.episode}
        super().__init__(f"task {result.task} has no reward ({result.outcome}): {why}", details)
        self.fault = "env" if result.outcome in ("ok", "env") else "user" if result.outcome == "user" else "infra"
        self.result = result


def score_of(result: EpisodeResult) -> float:
    """Return the reward of an episode as a number.

    Raises:
        EpisodeFailed: there is none.
    """
    if result.score is None:
        raise EpisodeFailed(result)
    return result.score


class EpisodeSource:
    """The tasks of an environment, and their episodes, for a trainer.

    Args:
        environment: ``name``, ``name@version``, or the path of a project on this machine.
        tasks: Tasks or rows of tasks, a file, or the name of a set of tasks. Default: those that the environment lists;
            if it lists none, one task without an instruction.
        agent: Agent of `play`, as for `aenv.rollout.rollout`. Default: the tool-calling loop.
        limits: Budgets of each episode, where its task has none.
        score: Name of the number that counts in a reward that is a dict.
        seed: Seed for the order of tasks.
        run: Name of the run under which episodes are recorded.
        store: Where to record; default: the user's store of trajectories.
        labels: Labels of all episodes.
        **options: Other arguments of `Environment`, such as ``aenv_url`` or ``network``.
    """

    def __init__(
        self,
        environment: str = "",
        *,
        tasks: Tasks = None,
        agent: Any = "loop",
        limits: TaskLimits | Mapping[str, Any] | None = None,
        score: str | None = None,
        seed: int | None = None,
        run: str | None = None,
        store: TrajectoryStore | Path | str | None = None,
        labels: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        chosen = find_agent(agent)
        self._tasks: list[Task] | None = None
        self._lists_tasks = tasks is None
        self._store = Path(store) if isinstance(store, str) else store
        self._samples = Counter[str]()
        self._random = random.Random(seed)
        self._plan = Plan(
            run or f"train-{uuid.uuid4().hex[:12]}",
            find_tasks(tasks, environment, options=options, score=score),
            chosen,
            describe_agent(chosen, agent),
            Fixed(1),
            TaskLimits.model_validate(limits or {}) if not isinstance(limits, TaskLimits) else limits,
            seed=seed,
            labels=dict(labels or {}),
            separate_tasks=True,
        )
        self._loading = asyncio.Lock()

    @property
    def run(self) -> str:
        """Name of the run under which episodes are recorded."""
        return self._plan.run

    async def tasks(self) -> list[Task]:
        """Return the tasks."""
        async with self._loading:
            if self._tasks is None:
                try:
                    self._tasks = list(await self._plan.task_set.tasks())
                except NotFound:
                    if not self._lists_tasks:
                        raise
                    self._tasks = [Task(id="default")]
            return self._tasks

    async def task(self, wanted: Task | Mapping[str, Any] | str | int | None = None) -> Task:
        """Return a task: by its id or number, the task that a row describes, or a random one.

        Raises:
            UsageError: there is no such task.
        """
        if isinstance(wanted, Task):
            return wanted
        if isinstance(wanted, Mapping):
            return await self._task_of_row(wanted)
        known = await self.tasks()
        if not known:
            raise UsageError("there are no tasks")
        if wanted is None:
            return self._random.choice(known)
        if isinstance(wanted, int):
            return known[wanted % len(known)]
        for each in known:
            if each.id == wanted:
                return each
        raise UsageError(f"no task {wanted!r}", {"hint": f"There are: {', '.join(each.id for each in known[:10])}"})

    async def _task_of_row(self, row: Mapping[str, Any]) -> Task:
        """Return the task that a row of a dataset names by its id, or the one that it describes."""
        given = {name: value for name, value in row.items() if value is not None}
        wanted = given.get("id", given.get("task_id"))
        if wanted is not None:
            for each in await self.tasks():
                if each.id == str(wanted):
                    return each
            if not given.keys() - {"id", "task_id", "prompt"}:
                return await self.task(str(wanted))  # says which there are
        if isinstance(given.get("prompt"), list):  # a chat, as most trainers keep prompts
            given["prompt"] = "\n".join(str(message.get("content") or "") for message in given["prompt"])
        given.setdefault("id", f"row-{uuid.uuid4().hex[:8]}")
        try:
            return Task.of_row(given)
        except ValueError as error:
            raise UsageError(f"the row is not a task: {error}") from None

    async def open(self, wanted: Task | Mapping[str, Any] | str | int | None = None) -> OpenEpisode:
        """Start an instance for a task, and return the episode, which the caller drives.

        Raises:
            EpisodeFailed: the instance could not be started or prepared.
        """
        task = await self.task(wanted)
        driven = _DrivenAgent()
        running = asyncio.ensure_future(self._attempt(task, driven, retries=0, on_result=driven.ended_with))
        ready = asyncio.ensure_future(driven.episode())
        try:
            await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            running.cancel()
            raise
        finally:
            ready.cancel()
        if running.done():
            raise EpisodeFailed(running.result())
        return OpenEpisode(driven, running)

    async def play(
        self,
        wanted: Task | Mapping[str, Any] | str | int | None = None,
        *,
        model: Model | None = None,
        agent: Callable[[Episode], Awaitable[None]] | None = None,
        sampling: Mapping[str, Any] | None = None,
        retries: int = RETRIES,
        sample: int | None = None,
        attempt: int = 0,
    ) -> EpisodeResult:
        """Run an agent on a task until its end, and return the result. Infra failures are retried in a new instance.

        Args:
            wanted: The task, its row, id or number. Default: a random one.
            model: The model that the agent asks; see `endpoint`.
            agent: The agent, if it is not that of the source.
            sampling: Sampling parameters of the model.
            retries: Maximum number of retries of an episode that failed for infra reasons.
            sample: Number of the sample of the task; default: the next one.
            attempt: Number of the first attempt at the sample.
        """
        task = await self.task(wanted)
        return await self._attempt(
            task,
            agent or self._plan.agent,
            model=model,
            sampling=sampling,
            retries=retries,
            sample=sample,
            first=attempt,
        )

    async def _attempt(
        self,
        task: Task,
        agent: Callable[[Episode], Awaitable[None]],
        *,
        model: Model | None = None,
        sampling: Mapping[str, Any] | None = None,
        retries: int,
        sample: int | None = None,
        first: int = 0,
        on_result: Callable[[EpisodeResult], None] = lambda result: None,
    ) -> EpisodeResult:
        plan = copy.copy(self._plan)
        plan.on_result = on_result
        plan.agent, plan.model, plan.sampling = agent, model, dict(sampling or {})
        if agent is not self._plan.agent:
            plan.agent_info = describe_agent(agent)
        plan.store = self._opened_store()
        if sample is None:
            sample = self._samples[task.id]
            self._samples[task.id] += 1
        before: EpisodeResult | None = None
        for attempt in itertools.count(first):
            left = retries + first - attempt
            work = PendingAttempt(task, sample, attempt, left, before.episode if before else None)
            before = await Attempt(plan, work).run()
            if before.final:
                return before
        raise AssertionError("unreachable")

    def _opened_store(self) -> TrajectoryStore:
        if not isinstance(self._store, TrajectoryStore):
            self._store = TrajectoryStore.open(self._store)
        return self._store

    async def close(self) -> None:
        """Close the store and what the set of tasks holds. Episodes that are open keep their instances."""
        await self._plan.task_set.close()
        if isinstance(self._store, TrajectoryStore):
            path = self._store.path
            self._store.close()
            self._store = path


class OpenEpisode:
    """An episode whose loop a trainer runs."""

    def __init__(self, driven: _DrivenAgent, running: asyncio.Future[EpisodeResult]) -> None:
        self._driven = driven
        self._running = running
        self.episode: Episode = driven.started
        """The episode as agents see it."""

    @property
    def task(self) -> Task:
        """The task, without what agents must not see."""
        return self.episode.task

    @property
    def instruction(self) -> str:
        """Instruction for the agent."""
        return self.episode.instruction

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools, in the format of OpenAI's Chat Completions."""
        return self.episode.tools

    async def call(self, tool: str, arguments: Mapping[str, Any] | str | None = None, *, id: str = "") -> ToolResult:
        """Call a tool. An error of the tool or its arguments is a result, for the agent to read.

        Raises:
            BudgetSpent: the episode may make no further call; `finish` grades the state that it has reached.
            EpisodeFailed: the instance is lost, or its infrastructure failed. The episode has no reward.
        """
        try:
            return await self.episode.call_tool(tool, arguments, id=id)
        except AEnvError as error:
            self._driven.fail(error)
            if error.fault == "timeout":
                raise
            result = await self.finish()
            if result.score is None:
                raise EpisodeFailed(result) from error
            raise  # the agent destroyed its instance: that is graded

    async def finish(self) -> EpisodeResult:
        """End the episode: grade it, release the instance, and return the result. A second call returns the same."""
        self._driven.end()
        return await asyncio.shield(self._running)

    async def grade(self) -> EpisodeResult:
        """End the episode and return its result as soon as it is recorded; the instance is released meanwhile."""
        self._driven.end()
        await asyncio.wait({self._running, self._driven.result}, return_when=asyncio.FIRST_COMPLETED)
        return self._running.result() if self._running.done() else self._driven.result.result()

    async def cancel(self) -> None:
        """End the episode without grading it, and release the instance."""
        if not self._running.done():
            self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)


class _DrivenAgent:
    """An agent that does nothing by itself: the trainer makes the calls, and says when it has ended."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._begun: asyncio.Future[Episode] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        self.result: asyncio.Future[EpisodeResult] = loop.create_future()
        """The result, before the instance is released."""

    def ended_with(self, result: EpisodeResult) -> None:
        """Take the result of the attempt."""
        if not self.result.done():
            self.result.set_result(result)

    async def __call__(self, episode: Episode) -> None:
        self._begun.set_result(episode)
        await self._ended

    async def episode(self) -> Episode:
        return await asyncio.shield(self._begun)

    @property
    def started(self) -> Episode:
        return self._begun.result()

    def end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def fail(self, error: AEnvError) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)


_shared: dict[str, EpisodeSource] = {}


def shared_source(options: Mapping[str, Any]) -> EpisodeSource:
    """Return the source with these options, one for each process: trainers make an object for each episode."""
    given = {str(name): value for name, value in options.items()}
    key = json.dumps(given, sort_keys=True, default=str)
    with _lock:
        if key not in _shared:
            _shared[key] = EpisodeSource(**given)
        return _shared[key]


def close_shared_sources() -> None:
    """Close all sources of `shared_source`; those that are asked for later are new."""
    with _lock:
        sources = list(_shared.values())
        _shared.clear()
    for source in sources:
        LoopThread.run(source.close())


async def at_home(work: Coroutine[Any, Any, T]) -> T:
    """Run work on the event loop that episodes of trainers belong to, from any other: trainers have several."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, LoopThread._running()))


def endpoint(url: str, *, model: str = "default", key: str | None = None, api: str = "chat") -> ModelEndpoint:
    """Return the model behind a URL that a trainer gives for one rollout."""
    return ModelEndpoint(model, url, api=api, key=key or "", stream=False)  # type: ignore[arg-type]
