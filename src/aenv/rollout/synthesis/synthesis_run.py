"""Make a dataset of tasks: propose, check, decide, and verify with rollouts, until there are enough."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

from aenv.errors import NotFound, UsageError
from aenv.rollout.endpoint import find_model
from aenv.rollout.environment_info import EnvironmentInfo
from aenv.rollout.episode import Price
from aenv.rollout.model import Model
from aenv.rollout.runs.rollout_run import rollout
from aenv.rollout.runs.run_lock import only_runner
from aenv.rollout.synthesis.call_shapes import Shape, shape_of, shapes_of, similar, tools_of, triples_of
from aenv.rollout.synthesis.checks import Checked, check
from aenv.rollout.synthesis.dataset_card import card_of
from aenv.rollout.synthesis.instructions import instruction_of
from aenv.rollout.synthesis.proposals import NO_EFFECT, ModelProposer, ModelUse, Proposal, mutated, new_tools, walk
from aenv.rollout.synthesis.reward_template import RewardTemplate
from aenv.rollout.synthesis.survey import Survey, survey
from aenv.rollout.synthesis.task_dataset import Dataset
from aenv.rollout.synthesis.trial_instances import TrialInstances
from aenv.rollout.task_set import TaskSet
from aenv.rollout.task_sources import find_tasks, read_rows
from aenv.schema.tasks import Task, TaskReward, TaskStep
from aenv.trajectory import TrajectoryStore

DUPLICATE_CALLS, DUPLICATE_TEXT, BALANCE, COMMITTEE = "duplicate calls", "duplicate text", "balance", "committee"
GOLD, NOP = "gold fails in a rollout", "doing nothing passes in a rollout"
GENERATOR = 3
"""Version of the generator: the same seed gives the same tasks only with the same version."""
PROPOSALS_PER_TASK = 30
"""Proposals, per task asked for, after which the search for more tasks ends."""
FRUITLESS_PROPOSALS = 240
"""Proposals in a row without a new task after which the search ends: there seem to be no other shapes of calls."""
MOST_OF_A_LENGTH = 0.4
"""Maximum share of tasks with the same number of calls."""
_BATCH = 8
_MUTATIONS = 10
_START_FIELDS = ("environment", "variables", "arguments", "datasource", "seed", "setup")


@dataclass(slots=True)
class SynthesisProgress:
    """Counts so far."""

    wanted: int
    kept: int = 0
    proposals: int = 0
    instances: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    model: ModelUse = field(default_factory=ModelUse)
    doing: str = "survey"

    def line(self) -> str:
        """Return the counts as one line."""
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.rejected.most_common())
        asked = f"; model: {self.model.requests} requests, cost {self.model.cost:.4f}" if self.model.requests else ""
        return (
            f"{self.doing}: {self.kept}/{self.wanted} tasks of {self.proposals} proposals"
            f"{f' (rejected: {reasons})' if reasons else ''}; {self.instances} instances{asked}"
        )


class Synthesis:
    """Makes a dataset of tasks for an environment.

    Args:
        environment: ``name``, ``name@version``, or the path of a project on this machine.
        folder: Where to write. A run that was stopped goes on there.
        count: How many tasks to make.
        seed: Seed of all random choices.
        tasks: Tasks to start from, as `rollout` takes them: their start parameters, and their solutions as examples.
            Default: those that the environment lists, if any.
        starts: Maximum number of different starts.
        examples: A JSONL file of calls that make sense: ``{"tool": ..., "arguments": {...}}``.
        exclude: Tools and functions that are not to be called.
        length: Maximum number of calls of a task.
        reward: The environment's reward that grades the tasks, in place of their state: its name, or ``name`` and
            ``arguments``. An argument ``{"observe": {"tool": ..., "path": ...}}`` is what that call shows after the
            known solution.
        model: A model that proposes tasks too, and votes on all; see `rollout`.
        price: Price of the model's tokens.
        committee: Votes on each task, if there is a model.
        solvers: Agents that attempt the tasks; the card says how many each solves.
        concurrency: Instances at the same time.
        **options: Other arguments of `Environment`.

    Example:
        ```python
        summary = await Synthesis("./shop", Path("shop-tasks"), count=50).run()
        ```
    """

    def __init__(
        self,
        environment: str,
        folder: Path,
        *,
        count: int = 200,
        seed: int = 0,
        tasks: str | Path | Sequence[Task | Mapping[str, Any]] | None = None,
        starts: int = 4,
        examples: Path | None = None,
        exclude: Sequence[str] = (),
        length: int = 5,
        reward: str | Mapping[str, Any] | None = None,
        model: Model | str | None = None,
        price: Price | None = None,
        committee: int = 3,
        solvers: Sequence[str] = (),
        concurrency: int = 4,
        **options: Any,
    ) -> None:
        if count < 1 or length < 1 or concurrency < 1 or starts < 1 or committee < 0:
            raise UsageError("count, length, starts and concurrency must be at least 1, and committee at least 0")
        self._environment = environment
        self._folder = folder
        self._count, self._seed, self._length, self._starts_limit = count, seed, length, starts
        self._tasks, self._options = tasks, options
        self._exclude = frozenset(exclude)
        self._examples = [TaskStep.model_validate(row) for row in read_rows(examples)] if examples else []
        found = find_model(model)
        self._model = ModelProposer(found, price) if found else None
        self._solving_model = found
        self._committee, self._solvers, self._concurrency = committee, list(solvers), concurrency
        self._reward = RewardTemplate(reward) if reward else None
        self._request = {
            "generator": GENERATOR, "environment": environment, "seed": seed, "length": length,
            "exclude": sorted(exclude), "reward": self._reward.as_json() if self._reward else None,
            "tasks": str(tasks) if isinstance(tasks, str | Path) else None, "starts": starts,
            "examples": str(examples) if examples else None, "model": found.name if found else None,
        }  # fmt: skip
        self._instances = TrialInstances(TaskSet([], environment, options=options), concurrency, self._opened)
        self._starts: list[Task] = []
        self._surveys: list[Survey] = []
        self._seeds: list[list[list[TaskStep]]] = []
        self._solved: dict[str, str] = {}
        self.progress = SynthesisProgress(count)

    async def run(self) -> dict[str, Any]:
        """Make the tasks that are missing, and return a summary.

        Raises:
            UsageError: the folder holds another dataset, or is being worked on.
            AEnvError: instances cannot be created, or the model refuses requests.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        with only_runner(self._folder, "synthesis"):
            dataset = Dataset(self._folder, self._request)
            await self._prepare()
            self._learn_again(dataset)
            self._show(dataset, "proposing")
            limit = self._count * PROPOSALS_PER_TASK
            while True:
                while len(dataset.kept) < self._count and (number := _next_number(dataset)) < min(
                    limit, _last_kept(dataset) + FRUITLESS_PROPOSALS
                ):
                    await self._batch(dataset, range(number, min(number + _BATCH, limit)))
                    self._show(dataset, "proposing")
                removed = await self._verify(dataset)
                if not removed:
                    break
            tasks = await self._final(dataset)
            await self._solve(tasks)
            summary = self._summary(dataset, tasks)
            async with self._instances.open(self._starts[0]) as world:
                info = await EnvironmentInfo().of(self._environment, world)
            dataset.write(tasks, card_of({**self._request, "environment_info": info}, summary))
            self._show(dataset, "done")
            return summary

    # --- starts

    async def _prepare(self) -> None:
        """Find the starts of instances, and survey the tools in each."""
        source = await self._source()
        different: dict[str, Task] = {}
        for task in await source.tasks() if source else ():
            start = Task(id="start", **{name: getattr(task, name) for name in _START_FIELDS})
            different.setdefault(start.model_dump_json(), task)
        chosen = _spread(list(different.values()), self._starts_limit) or [Task(id="start")]
        for task in chosen:
            start = Task(id="start", **{name: getattr(task, name) for name in _START_FIELDS})
            solution = await self._solution(source, task) if source else []
            solution = [step for step in solution if step.tool not in self._exclude]
            examples = [*self._examples, *solution]
            self._starts.append(start)
            self._seeds.append([solution] if solution else [])
            self._surveys.append(await survey(self._instances, start, examples, self._exclude, self._seed))
        if source is not None:
            await source.close()
        if not any(found.writers for found in self._surveys):
            raise UsageError("no tool of this environment changes anything that its other tools show")

    async def _source(self) -> TaskSet | None:
        source = find_tasks(self._tasks, self._environment, options=self._options)
        if self._tasks is None and not await _lists_tasks(source):
            return None
        return source

    async def _solution(self, source: TaskSet, task: Task) -> list[TaskStep]:
        async with source.open(task) as world:
            await source.prepare(world, task)
            return list(await source.solution(world, task))

    # --- proposals and decisions

    async def _batch(self, dataset: Dataset, numbers: range) -> None:
        """Propose and check some tasks at the same time; decide in their order, so that a seed repeats the run."""
        proposals = await asyncio.gather(*(self._propose(dataset, number) for number in numbers))
        for number, proposal in zip(numbers, proposals, strict=True):
            for step, changed in proposal.learned:
                self._survey(number).learn(step, changed)
        pairs = zip(numbers, proposals, strict=True)
        checked = await asyncio.gather(*(self._check(dataset, number, proposal) for number, proposal in pairs))
        for number, proposal, result in zip(numbers, proposals, checked, strict=True):
            await self._decide(dataset, number, proposal, result)
        learned = [
            [number % len(self._starts), step.model_dump(mode="json"), changed]
            for number, proposal in zip(numbers, proposals, strict=True)
            for step, changed in proposal.learned
        ]
        dataset.commit({"learned": learned, "ignored": [found.ignored_as_json() for found in self._surveys]})

    def _learn_again(self, dataset: Dataset) -> None:
        """Bring the surveys to the state that they had when an earlier part of this run was stopped."""
        for batch in dataset.batches:
            for start, step, changed in batch.get("learned", ()):
                self._surveys[start].learn(TaskStep(**step), changed)
            for found, ignored in zip(self._surveys, batch.get("ignored", ()), strict=False):
                found.ignored = {name: set(paths) for name, paths in ignored.items()}

    async def _propose(self, dataset: Dataset, number: int) -> Proposal:
        rng = random.Random(f"{self._seed}/{number}")
        found, start = self._survey(number), self._start(number)
        length = self._choose_length(dataset, rng)
        kept = [
            [TaskStep(**step) for step in entry["task"]["solution"]]
            for entry in dataset.kept
            if entry["start"] == self._starts.index(start)
        ]
        known = kept + self._seeds[self._starts.index(start)]
        way = number // len(self._starts) % 3
        if self._model is not None and way == 0:
            probes = found.probes([])
            trial = await self._instances.run(start, [], probes)
            seen = {probe.tool or probe.function: each for probe, each in zip(probes, trial.state, strict=True)}
            shapes = [", ".join(entry["shape"]) for entry in dataset.kept]
            return await self._model.propose(found, {str(name): each for name, each in seen.items()}, length, shapes)
        used = Counter(step.tool for steps in kept for step in steps)
        known_shapes = self._known_shapes(dataset)

        def is_new(steps: Sequence[TaskStep]) -> bool:
            return not shapes_of(steps, found.schemas) & known_shapes

        if way == 2 and known:
            made = [mutated(rng.choice(known), known, rng)[: self._length] for _ in range(_MUTATIONS)]
            return Proposal("mutation", next(filter(is_new, made), made[0]))
        begin = rng.choice(known) if way == 1 and known else []
        begin = begin[: max(0, length - 1)]
        already = [step.tool for step in begin]
        tools = new_tools(
            found, length - len(begin), used, rng, lambda more: tools_of([*already, *more]) not in known_shapes
        )
        return await walk(
            self._instances, start, found, length=length, used=used, rng=rng, begin=begin, tools=tools,
            most=self._length, is_new=is_new,
        )  # fmt: skip

    def _known_shapes(self, dataset: Dataset) -> set[Shape]:
        """Return the shapes of all kept tasks; a new task may have none of them."""
        found: set[Shape] = set()
        for entry in dataset.kept:
            steps = [TaskStep(**step) for step in entry["task"]["solution"]]
            found |= shapes_of(steps, self._surveys[entry["start"]].schemas)
        return found

    def _choose_length(self, dataset: Dataset, rng: random.Random) -> int:
        """Return a number of calls; those that gave new tasks so far are preferred."""
        proposed = Counter(len(entry["proposed"]) for entry in dataset.entries if "proposed" in entry)
        kept = Counter(len(entry["proposed"]) for entry in dataset.kept)
        lengths = range(1, self._length + 1)
        return rng.choices(lengths, [(kept[each] + 1) / (proposed[each] + 1) for each in lengths])[0]

    async def _check(self, dataset: Dataset, number: int, proposal: Proposal) -> Checked:
        if proposal.reason:
            return Checked(proposal.reason)
        if shapes_of(proposal.steps, self._survey(number).schemas) & self._known_shapes(dataset):
            return Checked(DUPLICATE_CALLS)  # known before any instance is used
        return await check(self._instances, self._start(number), self._survey(number), proposal.steps)

    async def _decide(self, dataset: Dataset, number: int, proposal: Proposal, result: Checked) -> None:
        found = self._survey(number)
        entry: dict[str, Any] = {
            "number": number, "source": proposal.source, "start": self._starts.index(self._start(number)),
            "proposed": [step.model_dump(mode="json") for step in proposal.steps],
        }  # fmt: skip
        reason, instruction = result.reason, ""
        shape: Shape = ()
        if not reason:
            shape = shape_of(result.steps, found.schemas)
            instruction = proposal.instruction or instruction_of(result.steps, found.descriptions, found.schemas)
            shapes = shapes_of(result.steps, found.schemas)
            reason = await self._reason(dataset, shapes, instruction, result.steps)
        if reason:
            dataset.append({**entry, "rejected": reason})
            return
        task = self._start(number).model_copy(
            update={
                "id": f"synth-{number:05d}",
                "instruction": instruction,
                "metadata": {"difficulty": _difficulty(len(result.steps))},
                "reward": TaskReward(state=result.probes),
                "solution": result.steps,
            }
        )
        dataset.append({**entry, "shape": list(shape), "task": task.as_row()})

    async def _reason(self, dataset: Dataset, shapes: set[Shape], instruction: str, steps: Sequence[TaskStep]) -> str:
        """Return why a task that passed its checks is not wanted; an empty text if it is."""
        kept = dataset.kept
        if len(kept) >= self._count:
            return BALANCE
        if shapes & self._known_shapes(dataset):
            return DUPLICATE_CALLS
        words = triples_of(instruction)
        if any(similar(words, triples_of(entry["task"]["instruction"])) for entry in kept):
            return DUPLICATE_TEXT
        same_length = sum(len(entry["task"]["solution"]) == len(steps) for entry in kept)
        if self._length > 2 and same_length >= ceil(self._count * MOST_OF_A_LENGTH):
            return BALANCE
        voters = self._committee if self._model is not None else 0
        if voters and self._model and not await self._model.accepts(instruction, steps, voters):
            return COMMITTEE
        return ""

    # --- verification

    async def _final(self, dataset: Dataset) -> list[Task]:
        """Return the kept tasks, graded by what is now known to change nothing and not to differ by itself."""
        return list(await asyncio.gather(*map(self._graded, dataset.kept)))

    async def _graded(self, entry: Mapping[str, Any]) -> Task:
        task = Task.of_row(entry["task"])
        known = task.reward.state
        probes = self._surveys[entry["start"]].with_ignored(known)
        if len(probes) < len(known):  # one of them changes the state, so that the others showed another one
            trial = await self._instances.run(self._starts[entry["start"]], task.solution, probes)
            seen = zip(probes, trial.state, strict=False)
            probes = [probe.model_copy(update={"expected": state}) for probe, state in seen]
        if self._reward is None or not probes:
            return task.model_copy(update={"reward": TaskReward(state=probes)})
        trial = await self._instances.run(self._starts[entry["start"]], task.solution, self._reward.probes)
        return task.model_copy(update={"reward": self._reward.filled(trial.state)})

    async def _verify(self, dataset: Dataset) -> int:
        """Run the known solution and an agent that does nothing; remove tasks that these do not tell apart."""
        self._show(dataset, "verifying")
        tasks = await self._final(dataset)
        if not tasks:
            return 0
        gold, nop = await self._scores(tasks, "gold"), await self._scores(tasks, "nop")
        removed = 0
        for task in tasks:
            reason = (
                NO_EFFECT
                if not task.reward.state and not task.reward.name
                else GOLD
                if gold.get(task.id) != 1.0
                else NOP
                if nop.get(task.id) != 0.0
                else ""
            )
            if reason:
                dataset.append({"removed": task.id, "rejected": reason})
                removed += 1
        if removed:
            dataset.commit({"verified": len(tasks) - removed})
        return removed

    async def _solve(self, tasks: Sequence[Task]) -> None:
        for solver in self._solvers if tasks else ():
            scores = await self._scores(tasks, solver, self._solving_model)
            self._solved[solver] = f"{sum(score == 1.0 for score in scores.values())} of {len(tasks)}"

    async def _scores(self, tasks: Sequence[Task], agent: str, model: Model | None = None) -> dict[str, float | None]:
        with tempfile.TemporaryDirectory() as folder, TrajectoryStore.open(Path(folder)) as store:
            made = rollout(
                self._environment, agent=agent, tasks=list(tasks), model=model, store=store,
                concurrency=self._concurrency, **self._options,
            )  # fmt: skip
            return {result.task: result.score async for result in made.results()}

    # --- what is shown

    def _start(self, number: int) -> Task:
        return self._starts[number % len(self._starts)]

    def _survey(self, number: int) -> Survey:
        return self._surveys[number % len(self._surveys)]

    def _opened(self, instances: int) -> None:
        self.progress.instances = instances

    def _show(self, dataset: Dataset, doing: str) -> None:
        progress = self.progress
        progress.doing, progress.kept, progress.rejected = doing, len(dataset.kept), dataset.rejected
        progress.proposals = _next_number(dataset)
        if self._model is not None:
            progress.model = self._model.use

    def _summary(self, dataset: Dataset, tasks: Sequence[Task]) -> dict[str, Any]:
        kept = dataset.kept
        tools = Counter(tool for task in tasks for tool in {step.tool for step in task.solution})
        return {
            "folder": str(self._folder),
            "tasks": len(tasks),
            "wanted": self._count,
            "proposals": _next_number(dataset),
            "shapes": len({tuple(entry["shape"]) for entry in kept}),
            "tools": dict(tools.most_common()),
            "calls": dict(sorted(Counter(len(task.solution) for task in tasks).items())),
            "sources": dict(Counter(entry["source"] for entry in kept).most_common()),
            "rejected": dict(dataset.rejected.most_common()),
            "starts": len(self._starts),
            "surveyed": [found.as_json() for found in self._surveys],
            "solved": self._solved,
            "model": {name: getattr(self.progress.model, name) for name in ModelUse.__slots__},
        }


async def _lists_tasks(source: TaskSet) -> bool:
    try:
        return bool(await source.tasks())
    except NotFound:
        return False


def _spread(tasks: list[Task], count: int) -> list[Task]:
    """Return ``count`` tasks with even distances: neighbours are often alike."""
    return [tasks[at * len(tasks) // count] for at in range(count)] if len(tasks) > count else tasks


def _last_kept(dataset: Dataset) -> int:
    return max((entry["number"] for entry in dataset.kept), default=-1)


def _next_number(dataset: Dataset) -> int:
    return max((entry["number"] for entry in dataset.entries if "number" in entry), default=-1) + 1


def _difficulty(calls: int) -> str:
    return "easy" if calls < 3 else "medium" if calls < 5 else "hard"
