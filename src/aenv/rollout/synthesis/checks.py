"""Checks of a proposed call sequence: it runs, every call of it is needed, and a replay reaches the same state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from aenv.rollout.synthesis.proposals import NO_EFFECT
from aenv.rollout.synthesis.survey import Survey
from aenv.rollout.synthesis.trial_instances import Trial, TrialInstances
from aenv.schema.tasks import StateProbe, Task, TaskStep
from aenv.sdk.state_check import same

EXECUTES = "executes"
"""Reject reason: a call fails in a fresh instance."""
REPLAY = "replay"
"""Reject reason: the same calls do not reach the same state again."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A call sequence that passed, or why it did not."""

    reason: str = ""
    steps: list[TaskStep] = field(default_factory=list)
    probes: list[StateProbe] = field(default_factory=list)
    """Probes with the expected observations."""


async def check(instances: TrialInstances, start: Task, survey: Survey, steps: Sequence[TaskStep]) -> Checked:
    """Run a call sequence in fresh instances, remove calls that are not needed, and return how to grade it.

    Raises:
        AEnvError: an instance could not be created, or was lost.
    """
    first = await instances.run(start, steps)
    if not first.executed:
        return Checked(EXECUTES)
    probes = survey.probes(list(steps), first.results)
    reached = await instances.run(start, steps, probes)
    untouched = await instances.run(start, [], probes)
    if not reached.executed:
        return Checked(REPLAY)
    useful = [
        at
        for at, probe in enumerate(probes)
        if not probe.arguments or not same(reached.state[at], untouched.state[at], probe.ignore)
    ]
    probes = [probes[at] for at in useful]
    state, initial = [reached.state[at] for at in useful], [untouched.state[at] for at in useful]
    if _equal(probes, state, initial):
        return Checked(NO_EFFECT)
    needed = await _minimal(instances, start, list(steps), probes, state)
    again = await instances.run(start, needed, probes)
    stable = again.executed and [
        survey.ignore(probe, [one], [other]) for probe, one, other in zip(probes, state, again.state, strict=True)
    ]
    if not stable or not all(stable):
        return Checked(REPLAY)
    probes = survey.with_ignored(probes)
    if _equal(probes, state, initial):
        return Checked(NO_EFFECT)
    expected = [probe.model_copy(update={"expected": seen}) for probe, seen in zip(probes, again.state, strict=True)]
    return Checked("", needed, expected)


async def _minimal(
    instances: TrialInstances,
    start: Task,
    steps: list[TaskStep],
    probes: list[StateProbe],
    state: list[dict[str, object]],
) -> list[TaskStep]:
    """Return the steps without those that the state does not depend on."""
    at = len(steps) - 1
    while at >= 0 and len(steps) > 1:
        without = steps[:at] + steps[at + 1 :]
        trial: Trial = await instances.run(start, without, probes)
        if trial.executed and _equal(probes, trial.state, state):
            steps = without
        at -= 1
    return steps


def _equal(probes: Sequence[StateProbe], one: Sequence[object], other: Sequence[object]) -> bool:
    return all(same(a, b, probe.ignore) for probe, a, b in zip(probes, one, other, strict=True))
