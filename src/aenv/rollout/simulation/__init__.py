"""Simulation: a model answers tool calls instead of the environment's code.

The tools, their schemas and their descriptions are those of the real environment. The state of the simulated world is
in SQLite, outside of the model's prompt; answers must fit the schemas; disturbances follow from a seed; everything is
recorded, so that a second run is the same without a model. Rewards and results of a simulated world say so.
"""

from aenv.rollout.simulation.fidelity import Fidelity, measure_fidelity
from aenv.rollout.simulation.model_recording import ModelRecording
from aenv.rollout.simulation.perturbations import Perturbations
from aenv.rollout.simulation.simulated_world import SimulatedWorld
from aenv.rollout.simulation.simulation import Simulation, find_simulation
from aenv.rollout.simulation.tool_simulator import SimulatorFailed

__all__ = [
    "Fidelity", "ModelRecording", "Perturbations", "SimulatedWorld", "Simulation", "SimulatorFailed", "find_simulation",
    "measure_fidelity",
]  # fmt: skip
