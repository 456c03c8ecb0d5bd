"""Survey of an environment: which of its tools read, which write, what they return, and what differs by itself.

Names and descriptions of tools prove nothing, so every tool is called. Each call is tried in a fresh instance, and then
all known calls are made there: if any of these gives another result than without the first call, that call has changed
something. The same is done twice with a pause, and what differs between the two (times, process ids) is not compared.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aenv.errors import AEnvError, UsageError
from aenv.rollout.synthesis.call_values import Values, bad_arguments, leaves
from aenv.rollout.synthesis.trial_instances import CALL_SECONDS, TrialInstances, attempt
from aenv.rollout.world import World
from aenv.schema.tasks import StateProbe, Task, TaskStep
from aenv.sdk.qualified_names import bare_name
from aenv.sdk.state_check import differing_paths, observe, same

PAUSE_SECONDS = 1.1
"""Time between two equal runs: results with a time in seconds must differ in it."""
_TRIES = 16
_ROUNDS = 2
_CALLS_OF_A_TOOL = 3
_MOST_PROBES = 16
_BAD = {True: "refused", False: "accepted", None: "none exist"}


@dataclass(slots=True)
class Survey:
    """Knowledge about the tools of an environment."""

    schemas: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Input schema of each tool."""
    descriptions: dict[str, str] = field(default_factory=dict)
    values: Values = field(default_factory=Values)
    good: dict[str, list[TaskStep]] = field(default_factory=dict)
    """Calls that succeeded at the start."""
    refuses_bad: dict[str, bool] = field(default_factory=dict)
    """True: the tool refused arguments that do not fit its schema; tools for which all fit are absent."""
    readers: set[str] = field(default_factory=set)
    """Tools whose known calls change nothing."""
    functions: set[str] = field(default_factory=set)
    """Functions without arguments that change nothing."""
    ignored: dict[str, set[str]] = field(default_factory=dict)
    """Paths in the results of a tool or function that differ by themselves."""

    @property
    def writers(self) -> list[str]:
        """Tools that may change something."""
        return sorted(set(self.schemas) - self.readers)

    def probes(self, steps: list[TaskStep], results: list[Any] | None = None) -> list[StateProbe]:
        """Return the calls that observe the state: readers without arguments, and those of what the steps name."""
        found = [self._probe(function=name) for name in sorted(self.functions)]
        named: dict[str, Any] = {}
        for _, leaf in leaves([[step.arguments for step in steps], results or []]):
            named.setdefault(f"{type(leaf).__name__}{leaf}", leaf)
        about = []
        for tool in sorted(self.readers):
            required = self.schemas[tool].get("required") or []
            if not required:
                found.append(self._probe(tool=tool))
            elif len(required) == 1:
                kind = (self.schemas[tool]["properties"][required[0]]).get("type")
                wanted = {"string": str, "integer": int}.get(kind)
                fitting = [leaf for leaf in named.values() if wanted and type(leaf) is wanted]
                about += [
                    self._probe(tool=tool, arguments={required[0]: leaf}) for leaf in fitting if _names_something(leaf)
                ]
        return found + about[:_MOST_PROBES]

    def _probe(self, **given: Any) -> StateProbe:
        name = given.get("tool") or given.get("function")
        return StateProbe(**given, ignore=sorted(self.ignored.get(str(name), ())))

    def ignore(self, probe: StateProbe, ones: Sequence[Any], others: Sequence[Any]) -> bool:
        """Remember what differs between observations of equal runs; return whether anything is left to compare."""
        pairs = zip(ones, others, strict=True)
        paths = {path for one, other in pairs for path in differing_paths(one, other)}
        name = probe.tool or probe.function or ""
        if "" in paths or "value" in paths:
            return False
        if paths:
            self.ignored.setdefault(name, set()).update(paths)
        return True

    def with_ignored(self, probes: Sequence[StateProbe]) -> list[StateProbe]:
        """Return the probes that still change nothing as far as is known, with all paths to ignore."""
        return [
            probe.model_copy(update={"ignore": sorted(self.ignored.get(probe.tool or probe.function or "", ()))})
            for probe in probes
            if probe.function in self.functions or probe.tool in self.readers
        ]

    def learn(self, step: TaskStep, changed: bool) -> None:
        """Remember whether a call that succeeded has changed anything."""
        known = self.good.setdefault(step.tool, [])
        if changed:
            self.readers.discard(step.tool)
        elif not known:
            self.readers.add(step.tool)
        if len(known) < _CALLS_OF_A_TOOL:
            known.append(step)

    def ignored_as_json(self) -> dict[str, list[str]]:
        """Return the paths to ignore as JSON data."""
        return {name: sorted(paths) for name, paths in sorted(self.ignored.items())}

    def as_json(self) -> dict[str, Any]:
        """Return what the card says about the tools."""
        return {
            tool: {
                "effect": "none" if tool in self.readers else "changes state" if tool in self.good else "unknown",
                "good_arguments": tool in self.good,
                "bad_arguments": _BAD[self.refuses_bad.get(tool)],
            }
            for tool in sorted(self.schemas)
        }


async def survey(
    instances: TrialInstances, start: Task, examples: list[TaskStep], exclude: frozenset[str], seed: int
) -> Survey:
    """Call every tool of an environment, and find out what its calls do.

    Raises:
        AEnvError: no instance could be created.
    """
    found = Survey(values=Values(examples))
    async with instances.open(start) as world:
        tools = {bare_name(world.env_name, tool["name"]): tool for tool in await world.list_tools()}
        listed = await _functions(world)
    _check_names(exclude, [*tools, *listed])
    for name, tool in tools.items():
        if name not in exclude:
            found.schemas[name] = tool.get("inputSchema") or {}
            found.descriptions[name] = tool.get("description") or name
    functions = [name for name, has_arguments in listed.items() if name not in exclude and not has_arguments]
    await _try_tools(instances, start, found, examples, random.Random(f"{seed}/survey"))
    await _find_effects(instances, start, found, functions)
    return found


async def _functions(world: World) -> dict[str, bool]:
    """Return the functions, and whether they have arguments."""
    lists = getattr(world, "list_functions", None)
    listed: Mapping[str, Any] = await lists() if lists is not None else {}
    return {
        each["name"]: bool((each.get("inputSchema") or {}).get("properties")) for each in listed.get("functions") or ()
    }


def _check_names(exclude: frozenset[str], known: list[str]) -> None:
    unknown = sorted(exclude.difference(known))
    if unknown:
        there = ", ".join(known)
        raise UsageError(f"there is no tool or function {unknown[0]!r} to exclude", {"hint": f"There are: {there}"})


async def _try_tools(
    instances: TrialInstances, start: Task, found: Survey, examples: list[TaskStep], rng: random.Random
) -> None:
    """Call each tool with good and bad arguments. What one returns may be an argument of the next."""
    known = [[step] for step in examples if step.tool in found.schemas]
    _remember(found, await asyncio.gather(*(_try(instances, start, steps) for steps in known)))
    for _ in range(_ROUNDS):
        wanted = [tool for tool in found.schemas if len(found.good.get(tool, ())) < _CALLS_OF_A_TOOL]
        made = [
            [
                TaskStep(tool=tool, arguments=found.values.arguments(tool, found.schemas[tool], rng, optional))
                for _ in range(_TRIES)
            ]
            for tool in wanted
            for optional in (0.0, 1.0)
        ]
        _remember(found, await asyncio.gather(*(_try(instances, start, steps) for steps in made)))
    bad = {tool: TaskStep(tool=tool, arguments=wrong) for tool, schema in found.schemas.items()
           if (wrong := bad_arguments(schema)) is not None}  # fmt: skip
    trials = await asyncio.gather(*(instances.run(start, [step]) for step in bad.values()))
    found.refuses_bad = {tool: not trial.executed for tool, trial in zip(bad, trials, strict=True)}


async def _try(instances: TrialInstances, start: Task, steps: list[TaskStep]) -> tuple[TaskStep, Any] | None:
    """Make calls of one tool in an instance until one succeeds; return that one with its result."""
    async with instances.open(start) as world:
        for step in steps:
            done, value = await attempt(world, step)
            if done:
                return step, value
    return None


def _remember(found: Survey, made: Sequence[tuple[TaskStep, Any] | None]) -> None:
    """Remember calls that succeeded, in a fixed order: the same seed must give the same survey."""
    for each in made:
        if each is None:
            continue
        step, value = each
        known = found.good.setdefault(step.tool, [])
        if step not in known and len(known) < _CALLS_OF_A_TOOL:
            known.append(step)
            found.values.add(value)


async def _find_effects(instances: TrialInstances, start: Task, found: Survey, functions: list[str]) -> None:
    calls = [
        step for tool in sorted(found.good, key=lambda t: len(found.good[t][0].arguments)) for step in found.good[tool]
    ]
    probes = [StateProbe(tool=step.tool, arguments=step.arguments) for step in calls]
    probes += [StateProbe(function=name) for name in functions]
    firsts: list[TaskStep | None] = [None, *calls]

    async def results(first: TaskStep | None) -> list[Any]:
        return await _observed(instances, start, [first] if first else [], probes)

    began = time.monotonic()
    once = await asyncio.gather(*map(results, firsts))
    await asyncio.sleep(max(0.0, PAUSE_SECONDS - (time.monotonic() - began)))
    again = await asyncio.gather(*map(results, firsts))
    stable = [
        found.ignore(probe, [one[at] for one in once], [other[at] for other in again])
        for at, probe in enumerate(probes)
    ]

    def changed(one: list[Any]) -> bool:
        return any(
            not same(one[at], once[0][at], found.ignored.get(probe.tool or probe.function or "", ()))
            for at, probe in enumerate(probes)
            if stable[at]
        )

    writers = {step.tool for step, made in zip(calls, once[1:], strict=True) if changed(made)}
    unstable = {probe.tool or probe.function for probe, fine in zip(probes, stable, strict=True) if not fine}
    found.readers = {tool for tool in found.good if tool not in writers and tool not in unstable}
    await _find_late_effects(instances, start, found)
    for at, name in enumerate(functions, len(calls)):
        shown = [made[at] for made in once]
        if name in unstable or all(same(each, shown[0], found.ignored.get(name, ())) for each in shown):
            continue  # it shows nothing of the state
        if not changed(await _observed(instances, start, StateProbe(function=name), probes)):
            found.functions.add(name)


async def _find_late_effects(instances: TrialInstances, start: Task, found: Survey) -> None:
    """Find readers that do change something once there is more to change: to close, to remove, to log out of."""
    while True:
        before = [step for tool in found.writers for step in found.good.get(tool, ())]
        late = await asyncio.gather(
            *(_acts_after(instances, start, found, before, tool) for tool in sorted(found.readers))
        )
        writers = {tool for tool, acts in zip(sorted(found.readers), late, strict=True) if acts}
        if not writers:
            return
        found.readers -= writers


async def _acts_after(instances: TrialInstances, start: Task, found: Survey, before: list[TaskStep], tool: str) -> bool:
    """Return whether the calls of a tool change what the other readers show, after the calls of all writers."""
    probes = [
        StateProbe(tool=step.tool, arguments=step.arguments, ignore=sorted(found.ignored.get(step.tool, ())))
        for name in sorted(found.readers - {tool})
        for step in found.good[name]
    ]
    without = await _observed(instances, start, before, probes)
    then = await _observed(instances, start, [*before, *found.good[tool]], probes)
    return any(not same(a, b, probe.ignore) for probe, a, b in zip(probes, without, then, strict=True))


async def _observed(
    instances: TrialInstances, start: Task, first: Sequence[TaskStep] | StateProbe, probes: list[StateProbe]
) -> list[Any]:
    """Return what all probes show after calls."""
    async with instances.open(start) as world:
        if isinstance(first, StateProbe):
            await _shown(world, first)
        else:
            for step in first:
                await attempt(world, step)
        return [await _shown(world, probe) for probe in probes]


async def _shown(world: World, probe: StateProbe) -> Any:
    try:
        return await observe(world, probe, CALL_SECONDS)
    except AEnvError as error:
        if error.fault == "infra":
            raise
        return {"error": True}


def _names_something(leaf: Any) -> bool:
    return not isinstance(leaf, str) or (0 < len(leaf) <= 64 and " " not in leaf)
