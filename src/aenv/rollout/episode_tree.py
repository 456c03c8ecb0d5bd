"""Rollouts that branch: an episode is forked at a turn, with its instance, and each continuation is graded by itself.

The agent is a function of one turn, because a coroutine cannot be copied in the middle, and a list can: what the agent
remembers between turns is in its ``memory``, and each continuation gets a copy.
"""

from __future__ import annotations

import asyncio
import copy
import uuid
import zlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from aenv.errors import AEnvError, ForkRefused, UsageError
from aenv.rollout.attempt import GRADE_SECONDS, Agent, Attempt, PendingAttempt, Plan
from aenv.rollout.budget import Budget
from aenv.rollout.endpoint import find_model
from aenv.rollout.episode import Episode
from aenv.rollout.model import Model
from aenv.rollout.outcome import AgentLacks
from aenv.rollout.result import EpisodeResult
from aenv.rollout.runs.concurrency import Fixed
from aenv.rollout.runs.rollout_run import TTL_MARGIN, describe_agent
from aenv.rollout.task_set import TaskSet
from aenv.rollout.task_sources import find_tasks
from aenv.rollout.world import World
from aenv.schema.tasks import Task, TaskLimits, TaskStep
from aenv.sdk.environment import Environment
from aenv.sdk.model_formats import ModelCall, OpenAIChat
from aenv.trajectory import RunRecord, TrajectoryStore

Turn = Callable[[Episode, list[Any]], Awaitable[bool]]
"""One turn of an agent: it acts, keeps what it must know in its memory, and returns whether it goes on."""
Branch = Mapping[int, int] | Callable[[Episode, int], int]
"""Number of continuations by the number of turns so far: ``{2: 4}``, or a function of the episode and that number."""

_CHAT = OpenAIChat()


@dataclass(frozen=True, slots=True)
class BranchedEpisode:
    """A graded episode of a tree."""

    result: EpisodeResult
    parent: str = ""
    """Identifier of the episode that it was forked from; empty: it began with the task."""
    turn: int = 0
    """Number of turns that its parent had made."""
    forks: tuple[int, ...] = ()
    """Turns at which it was forked itself, in order."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """A node of a tree: the part of an episode from a fork, or its beginning, to its next fork or its end."""

    episode: str
    turn: int
    """Turn that it begins with."""
    end: int | None
    """Turn of the fork that it ends with; None: it ends with the episode."""
    parent: str
    """Identifier of the episode that was forked; its own if that went on."""
    value: float | None
    """Mean score of the episodes that end below it; None if none of them has a score."""
    advantage: float | None
    """Its value minus the mean value of all continuations of the same fork, itself among them."""


@dataclass(slots=True)
class EpisodeTree:
    """Episodes of one task that were forked from each other."""

    run: str
    episodes: list[BranchedEpisode] = field(default_factory=list)
    failed: list[AEnvError] = field(default_factory=list)
    """Errors of forks that could not be made. They count neither as episodes nor as rewards."""

    def continuations(self) -> list[Continuation]:
        """Return the nodes of the tree, with their advantages."""
        groups: dict[tuple[str, int], list[tuple[str, int]]] = {}
        for each in self.episodes:
            groups.setdefault((each.parent, each.turn), []).append((each.result.episode, each.turn))
            for turn in each.forks:
                groups.setdefault((each.result.episode, turn), []).append((each.result.episode, turn))
        values = {node: _mean(self._scores(node)) for group in groups.values() for node in group}
        found = []
        for (parent, _), group in groups.items():
            mean = _mean([value for node in group if (value := values[node]) is not None])
            for node in group:
                value = values[node]
                advantage = None if value is None or mean is None else value - mean
                found.append(Continuation(*node, self._end(node), parent, value, advantage))
        return found

    def _episode(self, name: str) -> BranchedEpisode:
        return next(each for each in self.episodes if each.result.episode == name)

    def _end(self, node: tuple[str, int]) -> int | None:
        name, begin = node
        own = self._episode(name)
        later = [turn for turn in own.forks if turn > begin]
        return min(later, default=None)

    def _scores(self, node: tuple[str, int]) -> list[float]:
        """Return the scores of the episode and of all that were forked from it after a turn."""
        name, begin = node
        score = self._episode(name).result.score
        found = [] if score is None else [score]
        for each in self.episodes:
            if each.parent == name and each.turn > begin:
                found += self._scores((each.result.episode, each.turn))
        return found


def _mean(numbers: list[float]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None


async def model_turn(episode: Episode, memory: list[Any]) -> bool:
    """Ask the model once and run the tools that it calls, in order; it ends when it calls none."""
    if not memory:
        memory.append({"role": "user", "content": episode.instruction})
    reply = await episode.ask(memory)
    memory.append(reply.message)
    for call in reply.tool_calls:
        result = await episode.call_tool(call.name, call.arguments, id=call.id)
        memory += _CHAT.messages([(ModelCall(call.name, call.arguments, call.id), result)])
    return bool(reply.tool_calls)


async def rollout_tree(
    environment: str,
    task: Task | Mapping[str, Any],
    *,
    branch: Branch,
    turn: Turn = model_turn,
    samples: int = 1,
    most: int = 64,
    concurrency: int = 8,
    model: Model | str | None = None,
    sampling: Mapping[str, Any] | None = None,
    limits: TaskLimits | None = None,
    seed: int | None = None,
    run: str | None = None,
    store: TrajectoryStore | Path | None = None,
    labels: Mapping[str, str] | None = None,
    score: str | None = None,
    **options: Any,
) -> EpisodeTree:
    """Run a task, fork its episodes at chosen turns, and return all of them when the last has ended.

    Args:
        environment: ``name``, ``name@version``, or the path of a project on this machine.
        task: The task.
        branch: Number of continuations at a turn, the episode itself among them; 1, or no entry, does not fork.
        turn: One turn of the agent. Default: a model with tools.
        samples: Episodes that start with the task.
        most: Maximum number of episodes; beyond it nothing is forked.
        concurrency: Turns at the same time.
        model: See `rollout`, for this and what follows.
        sampling: Sampling parameters of the model.
        limits: Budgets of each path from the task to the end of an episode.
        seed: Seed of the tree.
        run: Identifier of the run.
        store: Where to record.
        labels: Labels of all episodes.
        score: Name of the number that counts in a reward that is a dict.
        **options: Other arguments of `Environment`.

    Raises:
        UsageError: an argument is invalid, or the instance cannot be forked.
    """
    if samples < 1 or concurrency < 1 or most < samples:
        raise UsageError("samples and concurrency must be at least 1, and most at least samples")
    budgets = limits or TaskLimits()
    options.setdefault("ttl", f"{int((budgets.seconds or 3600) + GRADE_SECONDS + TTL_MARGIN)}s")
    options["forkable"] = True
    found = find_tasks([task], environment, options=options, score=score)
    chosen = find_model(model)
    plan = Plan(
        run or f"run-{uuid.uuid4().hex[:12]}", found, _not_run, describe_agent(turn), Fixed(concurrency), budgets,
        chosen, dict(sampling or {}), None, seed, dict(labels or {}),
    )  # fmt: skip
    with ExitStack() as stack:
        plan.store = store if isinstance(store, TrajectoryStore) else stack.enter_context(TrajectoryStore.open(store))
        plan.store.begin_run(RunRecord(plan.run, title=environment, request={"environment": environment}))
        (only,) = await found.tasks()
        try:
            return await _Growth(plan, turn, branch, most, concurrency).run(only, samples)
        finally:
            await found.close()
            if chosen is not None:
                chosen.close()


async def _not_run(episode: Episode) -> None:
    """Stand in for the agent in the plan; each episode of a tree has its own."""


class _ForkedTasks(TaskSet):
    """The task of a fork: its instance runs already, and was prepared before it was forked."""

    def __init__(self, base: TaskSet, env: Environment, instruction: str) -> None:
        super().__init__([], base.environment)
        self._base = base
        self._env = env
        self._instruction = instruction

    def open(self, task: Task) -> AbstractAsyncContextManager[World]:
        return self._env

    async def prepare(self, world: World, task: Task) -> str:
        return self._instruction

    async def solution(self, world: World, task: Task) -> list[TaskStep]:
        return await self._base.solution(world, task)

    async def finish(self, world: World, task: Task) -> None:
        await self._base.finish(world, task)

    def score(self, reward: Any) -> float | None:
        return self._base.score(reward)

    def check_score(self, reward: Any) -> None:
        self._base.check_score(reward)


@dataclass(slots=True)
class _Branching:
    """An episode while it runs."""

    task: Task
    task_set: TaskSet
    sample: int
    memory: list[Any]
    parent: str = ""
    turn: int = 0
    seed: int | None = None
    forks: list[int] = field(default_factory=list)


class _Growth:
    """Runs the episodes of a tree."""

    def __init__(self, plan: Plan, turn: Turn, branch: Branch, most: int, concurrency: int) -> None:
        self._plan = plan
        self._turn = turn
        self._branch = branch
        self._most = most
        self._room = asyncio.Semaphore(concurrency)
        self._count = 0
        self._running: set[asyncio.Task[BranchedEpisode]] = set()
        self._forked: list[Environment] = []
        self._tree = EpisodeTree(plan.run)

    async def run(self, task: Task, samples: int) -> EpisodeTree:
        for _ in range(samples):
            self._start(_Branching(task, self._plan.task_set, self._next(), []))
        try:
            while self._running:
                done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                self._running -= done
                self._tree.episodes += [each.result() for each in done]
        finally:
            left = list(self._running)
            for each in left:
                each.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            for env in self._forked:  # those whose episode was stopped before it began
                with suppress(AEnvError):
                    await env.release()
        self._tree.episodes.sort(key=lambda each: each.result.sample)
        return self._tree

    def _next(self) -> int:
        self._count += 1
        return self._count - 1

    def _start(self, each: _Branching) -> None:
        self._running.add(asyncio.create_task(self._episode(each)))

    async def _episode(self, own: _Branching) -> BranchedEpisode:
        async def agent(episode: Episode) -> None:
            await self._act(own, episode)

        chosen: Agent = agent
        plan = replace(self._plan, task_set=own.task_set, agent=chosen)
        plan.store = self._plan.store
        lineage = ({"kind": "fork", "episode": own.parent, "turn": own.turn},) if own.parent else ()
        result = await Attempt(plan, PendingAttempt(own.task, own.sample, parents=lineage)).run()
        return BranchedEpisode(result, own.parent, own.turn, tuple(own.forks))

    async def _act(self, own: _Branching, episode: Episode) -> None:
        if own.seed is not None:
            episode.seed = own.seed
        turn, goes_on = own.turn, True
        while goes_on:
            if turn > own.turn or not own.parent:  # a fork is not forked again where it begins
                await self._fork(own, episode, turn)
            async with self._room:
                goes_on = await self._turn(episode, own.memory)
            turn += 1

    async def _fork(self, own: _Branching, episode: Episode, turn: int) -> None:
        """Start the other continuations of a turn, if there are any."""
        branch = self._branch
        wanted = branch(episode, turn) if callable(branch) else branch.get(turn, 1)
        count = min(wanted - 1, self._most - self._count)
        limits = _left(episode.budget)
        if count < 1 or limits is None:
            return
        samples = [self._next() for _ in range(count)]
        seeds = [zlib.crc32(f"{episode.seed}/{turn}/{number}".encode()) for number in range(count)]
        env = cast("Environment", episode.env)
        try:
            made = await env.fork(items=[{"seed": each} for each in seeds])
        except AEnvError as error:
            made = [error] * count
        own.forks.append(turn)
        task = own.task.model_copy(update={"setup": None, "limits": limits})
        for sample, seed, child in zip(samples, seeds, made, strict=True):
            if isinstance(child, AEnvError):
                self._failed(episode, turn, child)
                continue
            self._forked.append(child)
            tasks = _ForkedTasks(self._plan.task_set, child, episode.instruction)
            self._start(_Branching(task, tasks, sample, copy.deepcopy(own.memory), episode.id, turn, seed))

    def _failed(self, episode: Episode, turn: int, error: AEnvError) -> None:
        """Note a fork that failed. One that the environment refuses would fail in every episode, and ends the tree."""
        if isinstance(error, ForkRefused | UsageError):
            raise AgentLacks(f"the episode cannot be forked: {error.message}") from error
        episode.note(fork_failed=error.message, turn=turn)
        self._tree.failed.append(error)


def _left(budget: Budget) -> TaskLimits | None:
    """Return what is left of a budget; None if there is nothing left of one of its parts."""
    limits = budget.limits
    left = {
        "steps": None if limits.steps is None else limits.steps - budget.steps,
        "tokens": budget.tokens_left,
        "cost": None if limits.cost is None else limits.cost - budget.cost,
        "seconds": budget.seconds_left,
    }
    if any(each is not None and each <= 0 for each in left.values()):
        return None
    return TaskLimits.model_validate(left)
