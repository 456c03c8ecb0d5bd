"""Rollouts: run an agent over tasks and samples, record every episode, and say truthfully how each one ended.

An *agent* is ``async def agent(episode) -> None``. It gets the instruction, the tools, a model and a budget. After it
has ended, the environment's reward grades what it has reached.
"""

from aenv.rollout.agents.command import CommandAgent
from aenv.rollout.agents.scripted import ScriptedModel, calls, gold, nop, scripted
from aenv.rollout.agents.tool_loop import ToolLoop
from aenv.rollout.budget import Budget, BudgetSpent
from aenv.rollout.endpoint import ModelEndpoint
from aenv.rollout.episode import Episode, Price
from aenv.rollout.episode_tree import BranchedEpisode, Continuation, EpisodeTree, model_turn, rollout_tree
from aenv.rollout.model import Model, ModelRefused, ModelRequest, ModelUnavailable, Reply
from aenv.rollout.result import EpisodeResult
from aenv.rollout.runs.concurrency import Adaptive, Fixed
from aenv.rollout.runs.rollout_run import Rollout, rollout
from aenv.rollout.runs.run_progress import Progress
from aenv.rollout.task_set import TaskSet
from aenv.rollout.task_sources import find_tasks
from aenv.schema.tasks import Task, TaskLimits

__all__ = [
    "Adaptive", "BranchedEpisode", "Budget", "BudgetSpent", "CommandAgent", "Continuation", "Episode", "EpisodeResult",
    "EpisodeTree", "Fixed", "Model", "ModelEndpoint", "ModelRefused", "ModelRequest", "ModelUnavailable", "Price",
    "Progress", "Reply", "Rollout", "ScriptedModel", "Task", "TaskLimits", "TaskSet", "ToolLoop", "calls", "find_tasks",
    "gold", "model_turn", "nop", "rollout", "rollout_tree", "scripted",
]  # fmt: skip
