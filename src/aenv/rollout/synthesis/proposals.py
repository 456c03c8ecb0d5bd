"""Proposals of call sequences: walks over the tools, mutations of known sequences, and a model's ideas."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aenv.rollout.episode import Price
from aenv.rollout.model import Model, ModelRequest
from aenv.rollout.synthesis.call_values import Values, fits
from aenv.rollout.synthesis.survey import Survey
from aenv.rollout.synthesis.trial_instances import CALL_SECONDS, TrialInstances, attempt
from aenv.rollout.world import World
from aenv.schema.tasks import StateProbe, Task, TaskStep
from aenv.sdk.state_check import observe, same

_TRIES_OF_A_STEP = 10
_TRIES_OF_TOOLS = 50
_READS = 0.15
"""Share of calls of tools that change nothing; they show values for other calls."""
_MODEL_SECONDS = 300.0
NO_EFFECT = "no effect"
"""Reject reason: the calls leave the state as it was, so that an agent that does nothing passes."""
SCHEMA = "schema"
"""Reject reason: a proposal is no task, names an unknown tool, or its arguments do not fit."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A call sequence that may become a task."""

    source: str
    """``walk``, ``mutation`` or ``model``."""
    steps: list[TaskStep] = field(default_factory=list)
    instruction: str = ""
    """Instruction; empty if it is to be written from the calls."""
    reason: str = ""
    """Why it cannot be used, if so."""
    learned: list[tuple[TaskStep, bool]] = field(default_factory=list)
    """Calls that succeeded on the way, and whether they changed anything."""


@dataclass(slots=True)
class ModelUse:
    """Use of a model so far."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0


async def walk(
    instances: TrialInstances,
    start: Task,
    survey: Survey,
    *,
    length: int,
    used: Mapping[str, int],
    rng: random.Random,
    begin: Sequence[TaskStep] = (),
    tools: Sequence[str] = (),
    most: int = 0,
    is_new: Callable[[Sequence[TaskStep]], bool] = bool,
) -> Proposal:
    """Call tools at random in an instance, and keep the calls that succeed and change something.

    Args:
        instances: Where to walk.
        start: The start of the instance.
        survey: What is known about the tools.
        length: How many calls to keep.
        used: How often each tool is in the dataset; rare ones are preferred.
        rng: Random numbers.
        begin: Calls to begin with.
        tools: Tools to call first, in any order; each is dropped after some vain tries.
        most: How many calls to keep at most, if ``length`` calls are not new.
        is_new: Whether no task has such calls yet.
    """
    learned: list[tuple[TaskStep, bool]] = []
    values = survey.values.copy()
    async with instances.open(start) as world:
        kept = [step for step in begin if await _succeeds(world, step, values)]
        pending = _PendingTools(tools)
        for _ in range(max(length, most) * _TRIES_OF_A_STEP):
            if len(kept) >= max(length, most) or (len(kept) >= length and is_new(kept)):
                break
            tool = _choose(survey, used, rng, pending.names())
            pending.tried(tool)
            step = TaskStep(tool=tool, arguments=values.arguments(tool, survey.schemas[tool], rng))
            probes = [probe for probe in survey.probes([*kept, step]) if probe.tool != tool]
            before = await _state(world, probes)
            if not await _succeeds(world, step, values):
                continue
            values.add(step.arguments)
            after = await _state(world, probes)
            changed = any(not same(a, b, p.ignore) for p, a, b in zip(probes, before, after, strict=True))
            learned.append((step, changed))
            if changed:
                kept.append(step)
                pending.succeeded(tool)
    return Proposal("mutation" if begin else "walk", kept, "", "" if kept else NO_EFFECT, learned)


async def _succeeds(world: World, step: TaskStep, values: Values) -> bool:
    """Make a call, and learn from its result. Return whether it succeeded."""
    done, value = await attempt(world, step)
    if done:
        values.add(value)
    return done


class _PendingTools:
    """Tools that a walk has to call, each with how often, and with the vain tries that are left."""

    def __init__(self, tools: Sequence[str]) -> None:
        self._left = {tool: [count, _TRIES_OF_A_STEP] for tool, count in Counter(tools).items()}

    def names(self) -> list[str]:
        return sorted(self._left)

    def tried(self, tool: str) -> None:
        if tool in self._left:
            self._left[tool][1] -= 1
            if self._left[tool][1] < 0:
                del self._left[tool]

    def succeeded(self, tool: str) -> None:
        if tool in self._left:
            self._left[tool] = [self._left[tool][0] - 1, _TRIES_OF_A_STEP]
            if not self._left[tool][0]:
                del self._left[tool]


def mutated(steps: Sequence[TaskStep], others: Sequence[Sequence[TaskStep]], rng: random.Random) -> list[TaskStep]:
    """Return a sequence with a call removed, two swapped, or a part of another one inserted."""
    made = list(steps)
    how = rng.choice(("remove", "swap", "insert", "insert"))
    if how == "remove" and len(made) > 1:
        made.pop(rng.randrange(len(made)))
    elif how == "swap" and len(made) > 1:
        at = rng.randrange(len(made) - 1)
        made[at], made[at + 1] = made[at + 1], made[at]
    elif others:
        other = rng.choice(others)
        first = rng.randrange(len(other))
        at = rng.randint(0, len(made))
        made[at:at] = other[first : first + rng.randint(1, 2)]
    return made


class ModelProposer:
    """Asks a model for tasks, and whether tasks are good.

    Args:
        model: The model.
        price: Price of its tokens, if its server does not tell the cost.
        sampling: Sampling parameters.
    """

    def __init__(self, model: Model, price: Price | None = None, sampling: Mapping[str, Any] | None = None) -> None:
        self._model = model
        self._price = price
        self._sampling = dict(sampling or {})
        self.use = ModelUse()

    async def propose(self, survey: Survey, seen: Mapping[str, Any], length: int, avoid: Sequence[str]) -> Proposal:
        """Ask for a task: an instruction, and the calls that solve it."""
        tools = {
            name: {"description": survey.descriptions[name], "arguments": schema}
            for name, schema in survey.schemas.items()
        }
        answer = await self._ask(
            "You write tasks for agents that use tools. Propose one task: an instruction as a user would write it, "
            "with every value that is needed, and the tool calls that solve it. It must change the state of the "
            f"environment. Use about {length} calls. Answer with JSON only: "
            '{"instruction": "...", "calls": [{"tool": "...", "arguments": {...}}]}',
            {"tools": tools, "state": seen, "known_calls": [
                step.model_dump() for steps in survey.good.values() for step in steps[:1]
            ], "avoid_these_sequences": list(avoid)[-50:]},
        )  # fmt: skip
        try:
            steps = [TaskStep.model_validate(call) for call in answer["calls"]]
            instruction = answer["instruction"]
        except (KeyError, TypeError, ValueError):
            return Proposal("model", reason=SCHEMA)
        if not steps or not isinstance(instruction, str) or not instruction.strip():
            return Proposal("model", reason=SCHEMA)
        if any(
            step.tool not in survey.schemas or not fits(step.arguments, survey.schemas[step.tool]) for step in steps
        ):
            return Proposal("model", steps, instruction, reason=SCHEMA)
        return Proposal("model", steps, instruction)

    async def accepts(self, instruction: str, steps: Sequence[TaskStep], voters: int) -> bool:
        """Let a committee vote: whether the instruction alone leads to the state that the calls leave."""
        votes = 0
        for number in range(voters):
            answer = await self._ask(
                f"You are reviewer {number + 1} of a dataset of tasks for agents. Accept a task if its instruction "
                "makes sense, and names every value that an agent needs to reach the same state as the calls, which "
                'agents do not see. Answer with JSON only: {"accept": true or false, "reason": "..."}',
                {"instruction": instruction, "calls": [step.model_dump() for step in steps]},
            )
            votes += answer.get("accept") is True
        return votes * 2 > voters

    async def _ask(self, system: str, about: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON object of an answer; an empty one if there is none in it."""
        messages = [
            {"role": "system", "content": system},
            {"role": "user", "content": json.dumps(about, ensure_ascii=False)},
        ]
        reply = await self._model.complete(ModelRequest(messages, sampling=self._sampling, timeout=_MODEL_SECONDS))
        self.use.requests += 1
        self.use.input_tokens += reply.input_tokens
        self.use.output_tokens += reply.output_tokens
        self.use.cost += reply.cost or (self._price.of(reply) if self._price else 0.0)
        found = re.search(r"\{.*\}", reply.text, re.DOTALL)
        try:
            answer = json.loads(found[0]) if found else {}
        except ValueError:
            return {}
        return answer if isinstance(answer, dict) else {}


def new_tools(
    survey: Survey,
    length: int,
    used: Mapping[str, int],
    rng: random.Random,
    is_new: Callable[[Sequence[str]], bool],
) -> list[str]:
    """Return so many tools, with repetitions, that no task has called yet; the last try if all are known."""
    writers = [tool for tool in survey.writers if tool in survey.good] or survey.writers
    made: list[str] = []
    for _ in range(_TRIES_OF_TOOLS):
        made = rng.choices(writers, _weights(writers, used), k=length)
        if is_new(made):
            break
    return made


def _choose(survey: Survey, used: Mapping[str, int], rng: random.Random, wanted: Sequence[str]) -> str:
    readers = sorted(survey.readers)
    if readers and rng.random() < _READS:
        return rng.choice(readers)
    if wanted:
        return rng.choice(wanted)
    writers = survey.writers or readers
    return rng.choices(writers, _weights(writers, used))[0]


def _weights(writers: Sequence[str], used: Mapping[str, int]) -> list[float]:
    """Return weights that prefer rare tools."""
    return [1.0 / (1 + used.get(tool, 0)) + 0.02 for tool in writers]


async def _state(world: World, probes: Sequence[StateProbe]) -> list[Any]:
    return [await observe(world, probe, CALL_SECONDS) for probe in probes]
