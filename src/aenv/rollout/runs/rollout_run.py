"""Run an agent over tasks and samples: as many at a time as there is room for, each recorded, none twice."""

from __future__ import annotations

import hashlib
import inspect
import uuid
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, cast

from aenv._version import __version__
from aenv.authoring.task_rows import problems
from aenv.errors import UsageError
from aenv.rollout.agents.agent_names import find_agent
from aenv.rollout.agents.command import CommandAgent
from aenv.rollout.agents.tool_loop import tool_loop
from aenv.rollout.attempt import GRADE_SECONDS, Agent, PendingAttempt, Plan
from aenv.rollout.endpoint import find_model
from aenv.rollout.episode import Price
from aenv.rollout.model import Model
from aenv.rollout.result import EpisodeResult
from aenv.rollout.runs.blocking_iteration import iterate
from aenv.rollout.runs.concurrency import Adaptive, Concurrency, Fixed
from aenv.rollout.runs.episode_schedule import EpisodeSchedule
from aenv.rollout.runs.run_lock import only_runner
from aenv.rollout.runs.run_progress import Progress
from aenv.rollout.simulation.simulation import Simulation, find_simulation
from aenv.rollout.task_set import TaskSet
from aenv.rollout.task_sources import find_tasks
from aenv.rollout.users.user import User
from aenv.rollout.users.user_names import find_user
from aenv.schema.tasks import Task, TaskLimits
from aenv.trajectory import EpisodeSummary, Outcome, RunRecord, TrajectoryStore

TTL_MARGIN = 900.0
"""Seconds by which an instance may outlive the agent's deadline and grading."""
RETRIES = 2


class Rollout:
    """A rollout: iterate over it, with ``async for`` or ``for``, to run it and to get the results as they come.

    Leaving the loop early stops the episodes that run; resuming the rollout runs them again.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        request: Mapping[str, Any],
        samples: int,
        retries: int,
        limit: int | None,
        store: TrajectoryStore | Path | None,
        repeat: bool = False,
    ) -> None:
        """``repeat``: run all tasks of the set, also those that have finished before."""
        self._plan = plan
        self._store = store
        self._request = dict(request)
        self._samples = samples
        self._retries = retries
        self._limit = limit
        self._repeat = repeat
        self.progress = Progress(0)
        """Counts so far."""
        plan.on_reply = lambda reply: self.progress.replied(reply)
        plan.on_model_failure = lambda reason: self.progress.failing(f"the model: {reason}")

    @property
    def run(self) -> str:
        """Identifier of the run, to resume it and to find its trajectories."""
        return self._plan.run

    def __iter__(self) -> Iterator[EpisodeResult]:
        return iterate(self.results())

    def __aiter__(self) -> AsyncIterator[EpisodeResult]:
        return self.results()

    async def results(self) -> AsyncGenerator[EpisodeResult, None]:
        """Run the episodes that are left, and yield the result of each when it ends; first, those of earlier parts.

        Close the generator (``contextlib.aclosing``) if you leave the loop early and want the episodes to end at once.
        """
        plan = self._plan
        with ExitStack() as stack:
            plan.store = (
                self._store
                if isinstance(self._store, TrajectoryStore)
                else stack.enter_context(TrajectoryStore.open(self._store))
            )
            stack.enter_context(only_runner(plan.store.path / "running", plan.run))
            tasks = list(await plan.task_set.tasks())[: self._limit]
            _check_unique(tasks)
            self._begin_run()
            self.progress = Progress(len(tasks) * self._samples)
            try:
                for result in self._recorded(tasks):
                    self.progress.finished(result)
                    yield result
                schedule = EpisodeSchedule(plan, self._work(tasks), self.progress)
                async with aclosing(schedule.results()) as results:
                    async for result in results:
                        yield result
            finally:
                await plan.task_set.close()
                for opened in (plan.model, plan.user, plan.simulation):
                    if opened is not None:
                        opened.close()

    def _begin_run(self) -> None:
        found = self._plan.store.begin_run(
            RunRecord(self.run, title=str(self._request.get("environment", "")), request=self._request)
        )
        changed = [name for name, value in self._request.items() if found.request.get(name) != value]
        if changed:
            raise UsageError(
                f"the run {self.run} exists, and was started with different arguments: {', '.join(sorted(changed))}",
                {"hint": "Resume it with the same arguments, or choose another run."},
            )

    def _episodes(self) -> dict[tuple[str, int], EpisodeSummary]:
        """Return the deciding episode of each sample: the final one, else the last attempt."""
        found: dict[tuple[str, int], EpisodeSummary] = {}
        for episode in self._plan.store.all_episodes(self.run):
            known = found.get((episode.task, episode.sample))
            if known is None or (episode.final, episode.attempt) > (known.final, known.attempt):
                found[episode.task, episode.sample] = episode
        return found

    def _last_attempts(self) -> dict[tuple[str, int], EpisodeSummary]:
        found: dict[tuple[str, int], EpisodeSummary] = {}
        for episode in self._plan.store.all_episodes(self.run):
            known = found.get((episode.task, episode.sample))
            if known is None or episode.attempt > known.attempt:
                found[episode.task, episode.sample] = episode
        return found

    def _recorded(self, tasks: Sequence[Task]) -> Iterator[EpisodeResult]:
        """Yield the results of an earlier part of this run."""
        wanted = set() if self._repeat else {task.id for task in tasks}
        for episode in self._episodes().values():
            if episode.final and episode.task in wanted and episode.sample < self._samples:
                yield _result_of(episode)

    def _work(self, tasks: Sequence[Task]) -> Iterator[PendingAttempt]:
        """Yield what is left to do. Samples of a task are neighbours, so that they start from one prepared state."""
        known = self._last_attempts() if self._repeat else self._episodes()
        for task in map(self._seeded, tasks):
            for sample in range(self._samples):
                before = known.get((task.id, sample))
                if before is None:
                    yield PendingAttempt(task, sample, 0, self._retries)
                elif self._repeat or not before.final:
                    yield PendingAttempt(task, sample, before.attempt + 1, self._retries, before.id)

    def _seeded(self, task: Task) -> Task:
        """Return the task with a seed, so that its samples start alike where the environment draws random numbers."""
        if task.seed is not None:
            return task
        return task.model_copy(update={"seed": zlib.crc32(f"{self._plan.seed or 0}/{task.id}".encode())})


def rollout(
    environment: str = "",
    *,
    agent: Agent | str | None = None,
    tasks: TaskSet | Sequence[Task | Mapping[str, Any]] | str | Path | None = None,
    samples: int = 1,
    model: Model | str | None = None,
    sampling: Mapping[str, Any] | None = None,
    user: User | Callable[..., Any] | str | None = None,
    user_by_tool: bool | None = None,
    simulate: Simulation | str | Path | None = None,
    concurrency: int | Literal["auto"] | Concurrency = "auto",
    limits: TaskLimits | Mapping[str, Any] | None = None,
    price: Price | None = None,
    retries: int = RETRIES,
    seed: int | None = None,
    run: str | None = None,
    store: TrajectoryStore | Path | None = None,
    limit: int | None = None,
    labels: Mapping[str, str] | None = None,
    score: str | None = None,
    grade_seconds: float = GRADE_SECONDS,
    **options: Any,
) -> Rollout:
    """Run an agent over the samples of tasks, and record every episode.

    Args:
        environment: ``name``, ``name@version``, or the path of a project on this machine.
        agent: ``async def agent(episode)``; or the name of one: ``loop``, ``gold``, ``nop``, ``FILE.py:NAME``,
            ``MODULE:NAME``; or a command. Default: the tool-calling loop.
        tasks: Tasks or rows of tasks; a JSONL, JSON or Parquet file; or the name of a set of tasks. Default: the tasks
            that the environment lists with ``@register_tasks``.
        samples: Episodes for each task. They start from the same state.
        model: A model; or ``chat:NAME``, ``responses:NAME``, ``anthropic:NAME`` with the URL after ``@``; or
            ``FILE.py:NAME`` of a function that answers.
        sampling: Sampling parameters of the model, such as ``temperature``.
        user: Who plays the users whom agents talk to: a user of `aenv.rollout.users`, a function, ``scripted``,
            ``human``, ``model:MODEL``, ``FILE.py:NAME``. Default: nobody.
        user_by_tool: Whether agents talk to the user with the tool ``message_user``, and not by their turns. Default:
            only agents that are commands.
        simulate: A model that answers tool calls instead of the environment's code: a `Simulation`, a JSON file with
            its settings, or a model. Default: nothing is simulated.
        concurrency: Episodes at the same time; ``"auto"`` adapts to the CPUs, the platform and the model.
        limits: Budgets of each episode, where its task has none.
        price: Price of the model's tokens, for the budget ``cost``. Not needed if the model's server reports costs.
        retries: Maximum number of retries of an episode that failed for infra reasons, each in a new instance.
        seed: Seed of the rollout, from which those of tasks that have none, and those of agents, follow.
        run: Identifier of the run. If it exists, it is resumed: what has finished is not repeated.
        store: Where to record; default: the user's store of trajectories.
        limit: Maximum number of tasks.
        labels: Labels of all episodes.
        score: Name of the number that counts in a reward that is a dict.
        grade_seconds: Time limit for grading.
        **options: Other arguments of `Environment`, such as ``aenv_url`` or ``network``.

    Raises:
        UsageError: an argument is invalid.

    Example:
        ```python
        async for episode in rollout("notes@1.0.0", agent=agent, samples=8):
            print(episode.task, episode.outcome, episode.reward)
        ```
    """
    if samples < 1 or retries < 0 or (limit is not None and limit < 1):
        raise UsageError("samples and limit must be at least 1, and retries at least 0")
    budgets = _limits(limits)
    options.setdefault("ttl", f"{int((budgets.seconds or 3600) + grade_seconds + TTL_MARGIN)}s")
    found = find_tasks(tasks, environment, options=options, score=score)
    chosen_model = find_model(model)
    chosen = tool_loop if agent is None else find_agent(agent)
    player = find_user(user)
    simulation = find_simulation(simulate)
    if player is not None and player.one_at_a_time:
        concurrency = 1
    plan = Plan(
        run or f"run-{uuid.uuid4().hex[:12]}", found, chosen, describe_agent(chosen, agent),
        _concurrency(concurrency), budgets, chosen_model, dict(sampling or {}), price, seed, dict(labels or {}),
        grade_seconds, user=player,
        user_by_tool=isinstance(chosen, CommandAgent) if user_by_tool is None else user_by_tool,
        simulation=simulation,
    )  # fmt: skip
    request = {
        "environment": environment,
        "tasks": _source(tasks),
        "agent": plan.agent_info["name"],
        "model": chosen_model.name if chosen_model else None,
        "samples": samples,
        "seed": seed,
        "sampling": dict(sampling or {}),
        "limits": budgets.model_dump(exclude_none=True),
        "user": player.about() if player is not None else None,
        "simulation": simulation.about() if simulation is not None else None,
    }
    return Rollout(plan, request=request, samples=samples, retries=retries, limit=limit, store=store)


def _source(tasks: object) -> str | None:
    """Return what names a set of tasks, so that it is found again from another folder; None if it has no name."""
    if not isinstance(tasks, str | Path):
        return None
    path = Path(tasks).expanduser()
    return str(path.resolve()) if path.exists() else str(tasks)


def _limits(given: TaskLimits | Mapping[str, Any] | None) -> TaskLimits:
    if isinstance(given, TaskLimits):
        return given
    try:
        return TaskLimits.model_validate(given or {})
    except ValueError as error:
        raise UsageError(f"invalid limits: {problems(error)}") from None


def _concurrency(given: int | str | Concurrency) -> Concurrency:
    if given == "auto":
        return Adaptive()
    if isinstance(given, int):
        if given < 1:
            raise UsageError("concurrency must be at least 1")
        return Fixed(given)
    if isinstance(given, str):
        raise UsageError(f"invalid concurrency {given!r}; expected a number or 'auto'")
    return given


def describe_agent(agent: Callable[..., Any], given: object = None) -> dict[str, Any]:
    """Return name, version and digest of an agent.

    The version is that of the installed package that defines it; other agents have none. The digest is that of the
    file that it is defined in, or of the files that a command names.
    """
    kind = agent if inspect.isfunction(agent) or inspect.isclass(agent) else type(agent)
    name = given if isinstance(given, str) else f"{kind.__module__}:{kind.__qualname__}"
    if isinstance(agent, CommandAgent):
        words = [Path(word).expanduser() for word in agent.command.split()]
        files = [word for word in words if word.is_file()]
        return {"name": name} | _digest(files)
    try:
        files = [Path(inspect.getfile(kind))]
    except (OSError, TypeError):
        files = []
    return {"name": name} | _version(kind.__module__) | _digest(files)


def _version(module: str) -> dict[str, str]:
    package = module.partition(".")[0]
    if package == "aenv":
        return {"version": __version__}
    try:
        return {"version": metadata.version(package)}
    except (metadata.PackageNotFoundError, ValueError):
        return {}


def _digest(files: Sequence[Path]) -> dict[str, str]:
    found = hashlib.sha256()
    try:
        for file in files:
            found.update(file.read_bytes())
    except OSError:
        return {}
    return {"digest": f"sha256:{found.hexdigest()}"} if files else {}


def _check_unique(tasks: Sequence[Task]) -> None:
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise UsageError(f"two tasks have the id {task.id!r}")
        seen.add(task.id)
    if not tasks:
        raise UsageError("there are no tasks to run")


def _result_of(episode: EpisodeSummary) -> EpisodeResult:
    return EpisodeResult(
        episode.task, episode.sample, cast(Outcome, episode.outcome), episode.reward, episode.score,
        episode.failure_reason, episode.error or "", episode.fault, None, episode.id, episode.run, episode.attempt,
        episode.seconds or 0.0, episode.steps or 0, {"input": 0, "output": 0, **episode.tokens}, episode.cost or 0.0,
        True, True, episode.environment.get("user"), episode.environment.get("simulation"),
    )  # fmt: skip
