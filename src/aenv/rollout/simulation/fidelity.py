"""How much a simulated world is like the real one: recorded real calls are made in it, and the results compared."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from aenv.authoring.results import ToolResult
from aenv.errors import UsageError
from aenv.rollout.simulation.simulation import Simulation
from aenv.rollout.simulation.tool_simulator import SimulatorFailed
from aenv.sdk.environment import Environment
from aenv.trajectory.events import Event

Leaf = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Agreement of a simulated world with recorded calls of the real one, each number from 0 to 1."""

    calls: int
    """Calls that were compared."""
    failed: int
    """Calls that the simulator gave no valid result for; they count as wrong."""
    exact: float
    """Share of calls with just the same result."""
    format: float
    """Mean agreement of fields and types. An error where there was none, or none where there was one, is 0."""
    facts: float
    """Mean agreement of the values in them."""
    consistency: float | None
    """Share of repeated calls whose result changed, or stayed, as in reality; None if no call was repeated."""
    score: float
    """Mean of format, facts and consistency."""

    def as_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Pair:
    call: str
    real: Any
    """The result: an error is `_ERROR`."""
    simulated: Any


_ERROR = {"(error)": True}
_FAILED = {"(failed)": True}


async def measure_fidelity(
    environment: str, simulation: Simulation, episodes: Iterable[Iterable[Event]], **options: Any
) -> Fidelity:
    """Make the calls of recorded real episodes in a simulated world, undisturbed, and compare the results.

    The report is also kept in ``simulation.fidelity``, so that results of rollouts name it.

    Args:
        environment: The environment, for its tools.
        simulation: The simulation.
        episodes: Events of each episode. Do not use episodes whose results the simulation was made from.
        **options: Other arguments of `Environment`.

    Raises:
        UsageError: the episodes have no calls of simulated tools, or are from a simulated world themselves.
        AEnvError: the instance could not be created, or the model refused all requests.
    """
    compared: list[list[_Pair]] = []
    async with Environment(environment, **options) as env:
        for number, events in enumerate(episodes):
            compared.append(await _compared(env, simulation, list(events), number))
    simulation.fidelity = _report(compared)
    return simulation.fidelity


async def _compared(env: Environment, simulation: Simulation, events: Sequence[Event], number: int) -> list[_Pair]:
    if events and (events[0].get("environment") or {}).get("simulation"):
        raise UsageError("an episode from a simulated world is no measure of reality")
    world = simulation.open(env, f"fidelity/{number}", perturbed=False)
    results = {event["id"]: event for event in events if event["kind"] == "result"}
    pairs = []
    try:
        for event in events:
            recorded = results.get(event.get("id"))
            if event["kind"] != "call" or event.get("of") != "tool" or recorded is None:
                continue
            if not isinstance(event.get("arguments"), dict):
                continue
            tool = str(event["tool"])
            try:
                made: Any = _value(await world.call_tool(tool, event["arguments"]))
            except SimulatorFailed:
                made = _FAILED
            if world.simulates(tool):
                call = json.dumps([tool, event["arguments"]], sort_keys=True)
                pairs.append(_Pair(call, _recorded_value(recorded), made))
    finally:
        world.state.close()
    return pairs


def _recorded_value(event: Event) -> Any:
    """Return the value of a recorded result; a text that is JSON stands for its value."""
    if event.get("is_error"):
        return _ERROR
    if event.get("structured") is not None:
        return event["structured"]
    return _parsed(event.get("content") or [])


def _value(result: ToolResult) -> Any:
    if result.is_error:
        return _ERROR
    return result.structured if result.structured is not None else _parsed(result.content)


def _parsed(content: list[dict[str, Any]]) -> Any:
    if len(content) == 1 and content[0].get("type") == "text":
        try:
            return json.loads(content[0]["text"])
        except ValueError:
            return content[0]["text"]
    return content


def _report(compared: Sequence[Sequence[_Pair]]) -> Fidelity:
    pairs = [pair for episode in compared for pair in episode]
    if not pairs:
        raise UsageError("the recorded episodes have no calls of simulated tools")
    repeated = [agreed for episode in compared for agreed in _repetitions(episode)]
    consistency = sum(repeated) / len(repeated) if repeated else None
    shapes = [_agreement(_leaves(pair.real, types=True), _leaves(pair.simulated, types=True)) for pair in pairs]
    facts = [_agreement(_leaves(pair.real), _leaves(pair.simulated)) for pair in pairs]
    parts = [_mean(shapes), _mean(facts), *([] if consistency is None else [consistency])]
    return Fidelity(
        calls=len(pairs),
        failed=sum(pair.simulated is _FAILED for pair in pairs),
        exact=_mean([float(_text(pair.real) == _text(pair.simulated)) for pair in pairs]),
        format=_mean(shapes),
        facts=_mean(facts),
        consistency=None if consistency is None else round(consistency, 6),
        score=_mean(parts),
    )


def _repetitions(episode: Sequence[_Pair]) -> Iterator[bool]:
    """Yield for each call that was made before whether its result changed as in reality."""
    last: dict[str, _Pair] = {}
    for pair in episode:
        before = last.get(pair.call)
        if before is not None:
            changed = _text(before.real) != _text(pair.real)
            yield changed == (_text(before.simulated) != _text(pair.simulated)) and pair.simulated is not _FAILED
        last[pair.call] = pair


def _leaves(value: Any, path: str = "", *, types: bool = False) -> Counter[Leaf]:
    """Return the values of a result with their paths; with ``types``, each path with its type, once."""
    found: Counter[Leaf] = Counter()
    if isinstance(value, Mapping) and value:
        for name, each in value.items():
            found += _leaves(each, f"{path}/{name}", types=types)
    elif isinstance(value, list) and value:
        for number, each in enumerate(value):
            found += _leaves(each, f"{path}/{'*' if types else number}", types=types)
    else:
        found[path, _type(value) if types else _text(value)] += 1
    return Counter(dict.fromkeys(found, 1)) if types else found


def _agreement(one: Counter[Leaf], other: Counter[Leaf]) -> float:
    return 2 * (one & other).total() / (one.total() + other.total())


def _type(value: Any) -> str:
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 6)
