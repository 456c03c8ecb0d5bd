"""Attempt at a task: open an instance, prepare it, run the agent, grade, and record all of it."""

from __future__ import annotations

import asyncio
import inspect
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aenv.authoring.failures.failure_reward import failure_reason
from aenv.errors import AEnvError, Conflict, NotFound, Overloaded, RateLimited, StorageFull
from aenv.rollout.budget import Budget
from aenv.rollout.environment_info import EnvironmentInfo, usage_of
from aenv.rollout.episode import CALL_SECONDS, Episode, Price
from aenv.rollout.keep_alive import kept_alive
from aenv.rollout.model import Model, Reply
from aenv.rollout.outcome import OK, AgentCancelled, AgentLacks, Ending, Phase, ending_of, stops_rollout
from aenv.rollout.result import EpisodeResult
from aenv.rollout.runs.concurrency import Concurrency
from aenv.rollout.simulation.simulated_world import SimulatedWorld
from aenv.rollout.simulation.simulation import Simulation
from aenv.rollout.task_set import TaskSet
from aenv.rollout.tools import Tools
from aenv.rollout.users.user import User
from aenv.rollout.users.user_conversation import ToolWithUser, about_user, conversation_of
from aenv.rollout.world import World
from aenv.schema.tasks import Task, TaskLimits
from aenv.sdk.state_check import grade_state
from aenv.trajectory import EpisodeKey, EpisodeRecorder, TrajectoryStore

Agent = Callable[[Episode], Awaitable[None]]

GRADE_SECONDS = 300.0
STOP_SECONDS = 5.0
"""Time for a cancelled agent to end; grading does not wait longer."""
ADMISSION_SECONDS = 600.0
"""How long to ask a full platform for an instance again."""


@dataclass(slots=True)
class Plan:
    """Settings that all attempts of a rollout share."""

    run: str
    task_set: TaskSet
    agent: Agent
    agent_info: Mapping[str, Any]
    concurrency: Concurrency
    limits: TaskLimits
    model: Model | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    price: Price | None = None
    seed: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    grade_seconds: float = GRADE_SECONDS
    call_seconds: float = CALL_SECONDS
    user: User | None = None
    """Source of the users whom agents talk to."""
    user_by_tool: bool = False
    """Agents talk to the user with a tool, and not by their turns."""
    simulation: Simulation | None = None
    """Answers tool calls in the place of the environment's code."""
    separate_tasks: bool = False
    """Each task has an environment of its own, so that an error of the caller ends only its episode."""
    store: TrajectoryStore = field(init=False)
    environments: EnvironmentInfo = field(default_factory=EnvironmentInfo)
    on_reply: Callable[[Reply], None] = lambda reply: None
    on_model_failure: Callable[[str], None] = lambda reason: None
    on_result: Callable[[EpisodeResult], None] = lambda result: None
    """Called with the result of an attempt when it is durable, before the instance is released."""
    tools: dict[tuple[Any, ...], Tools] = field(default_factory=dict)
    """Tools by the start parameters of the instance: samples of one task ask only once."""


@dataclass(frozen=True, slots=True)
class PendingAttempt:
    """A sample to run."""

    task: Task
    sample: int
    attempt: int = 0
    retries_left: int = 0
    retry_of: str | None = None
    """Identifier of the failed attempt that this one repeats."""
    parents: tuple[Mapping[str, Any], ...] = ()
    """Episodes that this one follows from: ``kind``, ``episode``, and for forks the ``turn``."""


class Attempt:
    """Runs one attempt."""

    def __init__(self, plan: Plan, work: PendingAttempt) -> None:
        self._plan = plan
        self._work = work
        self._budget = Budget(work.task.limits.over(plan.limits))
        self._recorder: EpisodeRecorder | None = None
        self._environment: dict[str, Any] = {}
        self._trace: str | None = None
        self._user = about_user(work.task, plan.user)
        self._simulation = plan.simulation.result_info() if plan.simulation is not None else None
        self._phase: Phase = "start"
        self._began = time.monotonic()

    async def run(self) -> EpisodeResult:
        """Return the result. Raises only what stops the whole rollout, and on cancellation."""
        try:
            return await self._run()
        except asyncio.CancelledError:
            self._cancelled("the rollout was stopped")
            raise
        except Exception as error:
            if self._stops_rollout(error):
                if not isinstance(error, StorageFull):
                    self._cancelled(f"the rollout was stopped: {error}")
                raise
            return await self._end(ending_of(error, self._phase))

    async def _run(self) -> EpisodeResult:
        plan, task = self._plan, self._work.task
        if plan.simulation is not None:
            plan.simulation.check(task)
        async with AsyncExitStack() as stack:
            world = await self._open(stack, task)
            await stack.enter_async_context(kept_alive(world))
            self._environment = await plan.environments.of(self._environment_name, world)
            self._trace = getattr(world, "trace_id", None)
            self._begin()
            self._phase = "setup"
            acting, episode = await self._prepare(stack, world)
            self._phase = "agent"
            ending = await self._run_agent(episode)
            if isinstance(acting, SimulatedWorld):
                ending = self._end_simulation(acting, ending)
            if not ending.is_graded:
                return await self._end(ending)
            self._phase = "grade"
            used = await usage_of(world)
            if used is not None:
                self._recording().append("usage", **used)
            reward, reason = await self._grade(world, acting)
            if reason is not None and ending is OK:
                ending = Ending("policy", reason, "policy")
            return await self._end(ending, reward, reason)

    async def _prepare(self, stack: AsyncExitStack, world: World) -> tuple[World, Episode]:
        """Prepare an instance for the task. Return what the agent's calls act on, and what the agent gets."""
        plan, task = self._plan, self._work.task
        if task.setup is not None:
            given = task.setup.arguments
            self._recording().append("call", id="setup", of="function", function=task.setup.function, arguments=given)
        instruction = await plan.task_set.prepare(world, task)
        conversation, instruction = conversation_of(task, instruction, plan.user, self._note)
        acting = self._simulated(stack, world)
        seen = acting
        if conversation is not None and plan.user_by_tool:
            instruction = f"{instruction}\n\nThe user says:\n{await conversation.opening() or ''}"
            seen, conversation = ToolWithUser(acting, conversation), None
        tools = await self._tools(seen)
        episode = Episode(
            task,
            instruction=instruction,
            env=seen,
            tools=tools,
            user=conversation,
            recorder=self._recording(),
            budget=self._budget,
            sample=self._work.sample,
            seed=derived_seed(plan.seed, task, self._work.sample),
            model=plan.model,
            sampling=plan.sampling,
            price=plan.price,
            call_seconds=plan.call_seconds,
            solution=partial(plan.task_set.solution, world, task),
            on_reply=self._replied,
            on_model_failure=self._model_failed,
        )
        return acting, episode

    async def _open(self, stack: AsyncExitStack, task: Task) -> World:
        """Open an instance. A platform that has no room is asked again, with less concurrency."""
        deadline = time.monotonic() + ADMISSION_SECONDS
        while True:
            try:
                return await stack.enter_async_context(self._plan.task_set.open(task))
            except (Overloaded, RateLimited) as error:
                self._plan.concurrency.refused()
                pause = min(float(error.details.get("retry_after") or 1.0), 10.0)
                if time.monotonic() + pause > deadline:
                    raise
                await asyncio.sleep(pause)

    def _simulated(self, stack: AsyncExitStack, world: World) -> World:
        """Return the world that the agent acts in: the instance, or the simulated one in front of it."""
        if self._plan.simulation is None:
            return world
        made = self._plan.simulation.open(world, f"{self._work.task.id}/{self._work.sample}", self._note)
        stack.callback(made.state.close)
        return made

    def _end_simulation(self, world: SimulatedWorld, ending: Ending) -> Ending:
        """Return the ending: that of the simulator if it failed, also where the agent went on."""
        world.end_agent()
        self._recording().append("state", digest=world.state.digest(), what="the state of the simulated world")
        if world.failure is None or not ending.is_graded:
            return ending
        if self._stops_rollout(world.failure):
            raise world.failure
        return ending_of(world.failure, "agent")

    async def _tools(self, world: World) -> Tools:
        task = self._work.task
        key = (world.env_name, type(world), *sorted(task.variables.items()), *task.arguments, task.datasource)
        found = self._plan.tools.get(key)
        if found is None:
            found = self._plan.tools[key] = Tools(world.env_name, await world.list_tools())
        return found

    async def _run_agent(self, episode: Episode) -> Ending:
        """Run the agent until it ends or its time is up."""
        self._budget.start()
        error = await run_agent(self._plan.agent, episode)
        if error is None:
            return OK
        if self._stops_rollout(error):
            raise error
        return ending_of(error, "agent")

    def _stops_rollout(self, error: BaseException) -> bool:
        if self._plan.separate_tasks:
            return isinstance(error, StorageFull)
        return stops_rollout(error, self._phase)

    async def _grade(self, world: World, acting: World) -> tuple[Any, str | None]:
        """Return the reward, and why it is the failure reward. No reward is declared: None.

        ``acting``: the world that the agent acted in, which state is observed in.
        """
        task, recorder = self._work.task, self._recording()
        await self._plan.task_set.finish(world, task)
        wanted = task.reward
        state = {"state": [probe.model_dump(exclude_defaults=True) for probe in wanted.state]} if wanted.state else {}
        recorder.append("call", id="reward", of="reward", reward=wanted.name, arguments=wanted.arguments, **state)
        began = time.monotonic()
        try:
            if wanted.state:
                reward: Any = await grade_state(acting, wanted.state, self._plan.grade_seconds)
                recorder.append("state", digest=reward["state"], what="the state that the reward checks")
            else:
                reward = await world.call_reward(wanted.arguments, self._plan.grade_seconds, name=wanted.name)
        except (NotFound, Conflict) as error:
            if isinstance(error, NotFound) and wanted.name is None:
                recorder.append("result", id="reward", content=[], is_error=True, error=error.message)
                return None, None
            raise
        except AEnvError as error:
            recorder.append(
                "result", id="reward", content=[], is_error=True, fault=error.fault, error=error.message,
                seconds=round(time.monotonic() - began, 6),
            )  # fmt: skip
            raise
        seconds = round(time.monotonic() - began, 6)
        recorder.append("result", id="reward", content=[], structured=reward, is_error=False, seconds=seconds)
        reason = failure_reason(reward)
        if reason is None:
            self._plan.task_set.check_score(reward)
        return reward, reason

    # --- recording

    @property
    def _environment_name(self) -> str:
        return self._work.task.environment or self._plan.task_set.environment

    def _begin(self) -> EpisodeRecorder:
        plan, work = self._plan, self._work
        if self._recorder is None:
            parents = [*work.parents, *([{"kind": "retry", "episode": work.retry_of}] if work.retry_of else [])]
            self._recorder = plan.store.record(
                EpisodeKey(plan.run, work.task.id, work.sample, work.attempt),
                {
                    "environment": {**(self._environment or {"name": self._environment_name}), **self._not_real()},
                    "agent": dict(plan.agent_info),
                    "task": work.task.public().as_row(),
                    "sample": work.sample,
                    "attempt": work.attempt,
                    "seed": work.task.seed,
                    "model": plan.model.name if plan.model else None,
                    "sampling": dict(plan.sampling),
                    "parents": parents,
                    "labels": dict(plan.labels),
                    **({"trace": self._trace} if self._trace else {}),
                },
                secrets=[key for key in map(_key_of, (plan.model, plan.user, plan.simulation)) if key],
            )
        return self._recorder

    def _not_real(self) -> dict[str, Any]:
        """Return what the record says of parts that were played: the user, and the tools."""
        played = {"user": self._user, "simulation": self._simulation}
        return {name: about for name, about in played.items() if about is not None}

    def _recording(self) -> EpisodeRecorder:
        assert self._recorder is not None
        return self._recorder

    async def _end(self, ending: Ending, reward: Any = None, reason: str | None = None) -> EpisodeResult:
        """Record the end, and return the result when it is durable."""
        work, budget = self._work, self._budget
        recorder = self._begin()
        score = self._plan.task_set.score(reward)
        final = ending.outcome != "infra" or work.retries_left == 0
        fields = self._end_fields(ending)
        if self._plan.simulation is not None:
            reward = self._plan.simulation.marked(reward)
        await recorder.finish(ending.outcome, reward, final=final, failure_reason=reason, score=score, **fields)
        result = EpisodeResult(
            work.task.id, work.sample, ending.outcome, reward, score, reason, ending.error, ending.fault,
            ending.budget, recorder.episode_id, self._plan.run, work.attempt, fields["seconds"], budget.steps,
            fields["tokens"], budget.cost, final, user=self._user, simulation=self._simulation,
        )  # fmt: skip
        self._plan.on_result(result)
        return result

    def _cancelled(self, why: str) -> None:
        """Record that the episode was stopped. Resuming the rollout runs it again."""
        if self._recorder is not None and not self._recorder.ended:
            self._recorder.end_soon("cancelled", final=False, **self._end_fields(Ending("cancelled", why)))

    def _end_fields(self, ending: Ending) -> dict[str, Any]:
        budget = self._budget
        return {
            "fault": ending.fault,
            "error": ending.error or None,
            "budget": ending.budget,
            "seconds": round(time.monotonic() - self._began, 6),
            "steps": budget.steps,
            "tokens": {"input": budget.input_tokens, "output": budget.output_tokens},
            "cost": budget.cost or None,
        }

    def _replied(self, reply: Reply) -> None:
        self._plan.concurrency.answered(reply.seconds)
        self._plan.on_reply(reply)

    def _note(self, **data: Any) -> None:
        self._recording().append("note", data=data)

    def _model_failed(self, reason: str) -> None:
        if reason == "429":
            self._plan.concurrency.refused()
        self._plan.on_model_failure(reason)
        self._recording().append("note", data={"model_retry": reason})


async def run_agent(agent: Agent, episode: Episode) -> BaseException | None:
    """Run an agent until it ends or the time of its budget is up, and return the error with which it ended."""
    budget = episode.budget
    running = asyncio.ensure_future(_awaited(agent, episode))
    try:
        await asyncio.wait({running}, timeout=budget.limits.seconds)
        if not running.done():
            return budget.out_of_time()
        return AgentCancelled("the agent cancelled itself") if running.cancelled() else running.exception()
    finally:
        episode.end()
        if not running.done():
            running.cancel()
            await asyncio.wait({running}, timeout=STOP_SECONDS)
            if running.done() and not running.cancelled():
                running.exception()  # retrieved, so that asyncio does not log it


async def _awaited(agent: Agent, episode: Episode) -> None:
    made: object = agent(episode)
    if not inspect.isawaitable(made):
        name = getattr(agent, "__name__", type(agent).__name__)
        raise AgentLacks(f"the agent {name} is not a coroutine function", {"hint": "Define it with 'async def'."})
    await made


def _key_of(asking: object) -> str | None:
    """Return the key of a model, or of what asks one. Records must not contain it."""
    key: str | None = getattr(getattr(asking, "model", asking), "key", None)
    return key


def derived_seed(seed: int | None, task: Task, sample: int) -> int:
    """Return a seed that is the same for the same rollout, task and sample."""
    return zlib.crc32(f"{seed or 0}/{task.seed}/{task.id}/{sample}".encode())
