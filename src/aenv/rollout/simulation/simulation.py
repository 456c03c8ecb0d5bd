"""Settings of a simulated world, and the world of each episode."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aenv.errors import UsageError
from aenv.rollout.endpoint import find_model
from aenv.rollout.model import Model
from aenv.rollout.simulation.model_recording import ModelRecording
from aenv.rollout.simulation.perturbations import Perturbations
from aenv.rollout.simulation.simulated_state import SimulatedState
from aenv.rollout.simulation.simulated_world import SimulatedWorld
from aenv.rollout.simulation.tool_simulator import ModelReached, ToolSimulator, prompt_digest
from aenv.rollout.users.user import digest
from aenv.rollout.world import World
from aenv.schema.tasks import Task

if TYPE_CHECKING:
    from aenv.rollout.simulation.fidelity import Fidelity

_FIELDS = ("model", "tools", "about", "state", "perturbations", "sampling", "record", "offline", "answer_seconds")
MARK = "simulated"
"""Name of the field by which a reward says that it is from a simulated world."""


class Simulation:
    """A world in which a model answers tool calls instead of the environment's code.

    Args:
        model: The model, or its name as `rollout` takes it.
        tools: Names of the tools that it answers; default: all.
        about: What the software is, for the model.
        state: Initial state: entries by collection and key.
        perturbations: Errors, delays and partial data.
        sampling: Sampling parameters of the model.
        record: File to record the model's answers in. Answers that it has are used again: a second run is the same.
        offline: Never ask the model; all answers come from ``record``.
        answer_seconds: Time limit of a simulated call, retries of the model included.
    """

    def __init__(
        self,
        model: Model | str,
        *,
        tools: Collection[str] | None = None,
        about: str = "",
        state: Mapping[str, Mapping[str, Any]] | None = None,
        perturbations: Perturbations | None = None,
        sampling: Mapping[str, Any] | None = None,
        record: Path | None = None,
        offline: bool = False,
        answer_seconds: float = 120.0,
    ) -> None:
        found = find_model(model)
        if found is None or (offline and record is None):
            raise UsageError("a simulation needs a model, and if it is offline, a recording")
        self.model = found
        self.tools = None if tools is None else frozenset(tools)
        self.fidelity: Fidelity | None = None
        """How much it is like the real environment; see `measure_fidelity`. Results name it."""
        self._about = about
        self._state = {name: dict(entries) for name, entries in (state or {}).items()}
        self._perturbations = perturbations or Perturbations()
        self._sampling = dict(sampling or {})
        self._recording = ModelRecording(record, offline=offline) if record is not None else None
        self._answer_seconds = answer_seconds
        self._reached = ModelReached()

    def open(
        self,
        world: World,
        episode: str,
        note: Callable[..., object] = lambda **data: None,
        *,
        perturbed: bool = True,
    ) -> SimulatedWorld:
        """Return the simulated world of an episode.

        Args:
            world: The real instance.
            episode: Identifies the episode in the recording and among the perturbations: the same again in a second
                run, such as task and sample.
            note: Receives what is to be recorded.
            perturbed: Whether calls are disturbed.
        """
        model = self._recording.of_episode(self.model, episode) if self._recording is not None else self.model
        state = SimulatedState(self._state)
        simulator = ToolSimulator(
            model,
            state,
            about=self._about,
            sampling=self._sampling,
            answer_seconds=self._answer_seconds,
            reached=self._reached,
        )
        disturbances = self._perturbations if perturbed else Perturbations()
        return SimulatedWorld(
            world, simulator, state, tools=self.tools, perturbations=disturbances, episode=episode, note=note
        )

    def check(self, task: Task) -> None:
        """Check that what grades a task is in the simulated world.

        Raises:
            UsageError: all tools are simulated, and the real instance would be graded, which no call has changed.
        """
        probes = task.reward.state
        if self.tools is None and (not probes or any(probe.tool is None for probe in probes)):
            hint = "Grade it by state with tools ({'state': [...]}), or simulate only tools that change nothing."
            raise UsageError(
                f"task {task.id!r} is graded in the real instance, which simulated tools do not change", {"hint": hint}
            )

    def about(self) -> dict[str, Any]:
        """Return what results depend on: the model, digests of prompt and initial state, tools and perturbations."""
        return {
            "model": self.model.name,
            "prompt": prompt_digest(self._about, self._sampling),
            "state": digest(self._state),
            "tools": None if self.tools is None else sorted(self.tools),
            "perturbations": self._perturbations.as_json(),
        }

    def result_info(self) -> dict[str, Any]:
        """Return what results say: also how much it is like the real environment, None if that was not measured."""
        return {**self.about(), "fidelity": None if self.fidelity is None else self.fidelity.as_json()}

    def marked(self, reward: Any) -> Any:
        """Return a reward that says that it is from a simulated world."""
        if reward is None:
            return None
        return {**(reward if isinstance(reward, Mapping) else {"score": reward}), MARK: True}

    def close(self) -> None:
        """Close the model's connections and the recording."""
        self.model.close()
        if self._recording is not None:
            self._recording.close()


def find_simulation(given: Simulation | str | Path | None) -> Simulation | None:
    """Return the simulation that ``given`` is or names: a JSON file with its settings, or a model.

    Raises:
        UsageError: the file or the model is invalid.
    """
    if given is None or isinstance(given, Simulation):
        return given
    path = Path(given)
    if path.suffix != ".json":
        return Simulation(str(given))
    try:
        settings = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    if not isinstance(settings, dict) or not isinstance(settings.get("model"), str):
        raise UsageError(f"{path} is not a simulation: it needs a model", {"hint": f"Fields: {', '.join(_FIELDS)}"})
    unknown = sorted(settings.keys() - set(_FIELDS))
    if unknown:
        raise UsageError(f"{path} has unknown fields: {', '.join(unknown)}", {"hint": f"Fields: {', '.join(_FIELDS)}"})
    if "record" in settings:
        settings["record"] = path.parent / settings["record"]
    try:
        if "perturbations" in settings:
            settings["perturbations"] = Perturbations(**settings["perturbations"])
        return Simulation(**settings)
    except (TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{path} is not a simulation: {error}") from None
