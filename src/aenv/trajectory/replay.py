"""Run the recorded calls of an episode again, on a fresh instance, and compare results and reward.

No agent and no model is needed: the calls are those that were recorded, in their order. An environment that gives the
same results for the same calls replays exactly; the first difference shows what it depends on besides.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from aenv.authoring.results import ToolResult
from aenv.errors import AEnvError, UsageError
from aenv.schema.tasks import StateProbe
from aenv.sdk.environment import Environment
from aenv.sdk.state_check import grade_state
from aenv.trajectory.events import Event
from aenv.trajectory.redaction import REDACTED

_COMPARED = ("is_error", "content", "structured")


class ReplayWorld(Protocol):
    """A fresh instance to replay calls on. `aenv.Environment` is one."""

    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None = None, timeout: float | None = None
    ) -> ToolResult:
        """Call a tool; see `Environment.call_tool`."""
        ...

    def call_function(
        self, function_name: str, arguments: dict[str, Any] | None = None, timeout: float | None = None
    ) -> Awaitable[Any]:
        """Call a function; see `Environment.call_function`."""
        ...

    async def call_reward(
        self, arguments: dict[str, Any] | None = None, timeout: float | None = None, *, name: str | None = None
    ) -> Any:
        """Return the reward; see `Environment.call_reward`."""
        ...


@dataclass(frozen=True, slots=True)
class ResultDifference:
    """A result that was another one this time."""

    seq: int
    """Number of the call's event."""
    call: str
    """Call as text: ``tool add``."""
    arguments: Any
    field: str
    """``is_error``, ``content``, ``structured`` or ``failure``."""
    recorded: Any
    replayed: Any


@dataclass(slots=True)
class ReplayReport:
    """Result of replaying an episode."""

    environment: str
    calls: int = 0
    compared: int = 0
    """Calls whose result was recorded, so that it could be compared."""
    different: int = 0
    first: ResultDifference | None = None
    recorded_reward: Any = None
    reward: Any = None
    graded: bool = False
    """True: a reward was computed again."""
    redacted: bool = False
    """True: arguments contain redacted values, which cannot be replayed."""
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def same_reward(self) -> bool:
        """Return whether the reward is the recorded one, or neither exists."""
        return not self.graded or self.reward == self.recorded_reward

    @property
    def equal(self) -> bool:
        """Return whether results and reward are the recorded ones."""
        return self.different == 0 and self.same_reward

    def as_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        names = [name for name in self.__slots__ if name != "first"]
        first = None if self.first is None else {name: getattr(self.first, name) for name in self.first.__slots__}
        fields = {name: getattr(self, name) for name in names}
        return {"equal": self.equal, "same_reward": self.same_reward, **fields, "first": first}


async def replay(
    events: Iterable[Event],
    environment: str | None = None,
    *,
    ignore: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    timeout: float = 60.0,
    **options: Any,
) -> ReplayReport:
    """Replay the calls of an episode on a fresh instance.

    Args:
        events: The recorded events.
        environment: Environment to use instead of the recorded one.
        ignore: Regular expressions; what they match in texts is not compared, such as times and paths.
        variables: Variables of the instance, in addition to the recorded ones: secrets are not recorded.
        timeout: Time limit of a call in seconds.
        options: Other arguments of `Environment`.

    Raises:
        UsageError: the events are not those of an episode, or name no environment.
        AEnvError: the instance could not be created.
    """
    kept = replayable(events)
    begin = kept[0]
    name = environment or environment_of(begin)
    task = begin.get("task") or {}
    recorded = {key: value for key, value in (task.get("variables") or {}).items() if value != REDACTED}
    given = {**recorded, **(variables or {})}
    if task.get("seed") is not None:
        given.setdefault("AENV_SEED", str(task["seed"]))
    env = Environment(
        name,
        datasource=task.get("datasource") or "",
        environment_variables=given,
        arguments=task.get("arguments") or None,
        timeout=timeout,
        **options,
    )
    async with env:
        report = await replay_on(env, kept, name, ignore=ignore)
    missing = sorted(set(task.get("variables") or {}) - set(given))
    if missing:
        report.notes.append(f"these variables are secrets and were not recorded: {', '.join(missing)}")
    return report


async def replay_on(
    world: ReplayWorld,
    events: Iterable[Event],
    name: str,
    *,
    ignore: Sequence[str] = (),
    skip: Collection[str] = (),
    before_grading: Callable[[], Awaitable[None]] | None = None,
) -> ReplayReport:
    """Replay the calls of an episode on an instance that is ready.

    Args:
        world: The instance.
        events: The recorded events.
        name: What to call the instance in the report.
        ignore: See `replay`.
        skip: Ids of calls that were made already, such as that of the setup function.
        before_grading: Awaited before the reward is computed.

    Raises:
        UsageError: the events are not those of an episode.
    """
    run = _Replay(world, replayable(events), [re.compile(each) for each in ignore], ReplayReport(name))
    started = time.monotonic()
    await run.all(frozenset(skip), before_grading)
    run.report.seconds = round(time.monotonic() - started, 3)
    return run.report


def replayable(events: Iterable[Event]) -> list[Event]:
    """Return the events that a replay needs.

    Raises:
        UsageError: they do not begin with the beginning of an episode.
    """
    kept = [event for event in events if event["kind"] in ("begin", "call", "result", "end")]
    if not kept or kept[0]["kind"] != "begin":
        raise UsageError("these events do not begin an episode")
    return kept


def environment_of(begin: Event) -> str:
    """Return the environment that an episode ran in, as ``Environment`` takes it.

    Raises:
        UsageError: it was not recorded, or the episode was imported: a file must not choose which code runs here.
    """
    recorded = begin.get("environment") or {}
    if begin.get("imported"):
        raise UsageError("the episode was imported", {"hint": "Name the environment to replay in, with --env."})
    name = recorded.get("source") or recorded.get("name")
    if not name:
        raise UsageError("the episode names no environment", {"hint": "Name one with --env."})
    version = recorded.get("version")
    return str(name) if "@" in name or not version or recorded.get("source") else f"{name}@{version}"


class _Replay:
    def __init__(
        self, world: ReplayWorld, events: Sequence[Event], ignore: Sequence[re.Pattern[str]], report: ReplayReport
    ) -> None:
        self._world = world
        self._events = events
        self._ignore = ignore
        self.report = report

    async def all(self, skip: Collection[str], before_grading: Callable[[], Awaitable[None]] | None) -> None:
        report = self.report
        results = {event["id"]: event for event in self._events if event["kind"] == "result"}
        end = self._events[-1] if self._events[-1]["kind"] == "end" else {}
        report.recorded_reward = end.get("reward")
        calls = [event for event in self._events if event["kind"] == "call" and event["id"] not in skip]
        grading = [event for event in calls if event["of"] == "reward"]
        for event in (event for event in calls if event["of"] != "reward"):
            await self._one(event, results.get(event["id"]))
        if before_grading is not None:
            await before_grading()
        for event in grading:
            await self._one(event, results.get(event["id"]))
        if not report.graded and report.recorded_reward is not None:
            await self._grade()
        if report.redacted:
            report.notes.append("some arguments were redacted when they were recorded, and cannot be replayed")

    async def _one(self, call: Event, recorded: Event | None) -> None:
        report = self.report
        report.redacted = report.redacted or REDACTED in json.dumps(call.get("arguments"))
        answer = await self._answer(call)
        report.calls += 1
        if call["of"] == "reward" and not answer["is_error"]:
            report.graded, report.reward = True, answer["structured"]
        if recorded is not None:
            report.compared += 1
            self._compare(call, recorded, answer)

    async def _answer(self, event: Event) -> dict[str, Any]:
        """Return what a call gives, in the form of a recorded result."""
        of, name = event["of"], event.get(event["of"])
        arguments = event.get("arguments") or {}
        try:
            if of == "tool":
                if not isinstance(arguments, dict):  # a model wrote something that was no JSON object: nothing was sent
                    return {"is_error": True, "content": None, "structured": None}
                result = await self._world.call_tool(str(name), arguments)
                return {"is_error": result.is_error, "content": result.content, "structured": result.structured}
            if of == "function":
                value = await self._world.call_function(str(name), arguments)
            elif event.get("state"):
                value = await grade_state(self._world, [StateProbe(**probe) for probe in event["state"]])
            else:
                value = await self._world.call_reward(arguments, name=name)
            return {"is_error": False, "content": [], "structured": value}
        except AEnvError as error:
            if error.fault == "infra":
                raise
            return {"is_error": True, "content": [], "structured": None, "failure": error.message}

    def _compare(self, call: Event, recorded: Event, answer: Mapping[str, Any]) -> None:
        for name in _COMPARED:
            if name == "content" and answer[name] is None:
                continue
            before, now = self._comparable(recorded.get(name)), self._comparable(answer[name])
            if before != now:
                self.report.different += 1
                if self.report.first is None:
                    self.report.first = ResultDifference(
                        call["seq"], f"{call['of']} {call.get(call['of']) or ''}".strip(), call.get("arguments"), name,
                        recorded.get(name), answer.get("failure") if answer.get("failure") else answer.get(name),
                    )  # fmt: skip
                return

    def _comparable(self, value: Any) -> Any:
        if isinstance(value, str):
            for pattern in self._ignore:
                value = pattern.sub("", value)
            return value
        if isinstance(value, Mapping):
            return {name: self._comparable(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._comparable(each) for each in value]
        return value

    async def _grade(self) -> None:
        try:
            self.report.reward = await self._world.call_reward()
        except AEnvError as error:
            if error.fault == "infra":
                raise
            self.report.notes.append(f"the reward could not be computed again: {error.message}")
        self.report.graded = True
