"""Find an agent by its name: a ready one, a function in a file or a module, a plug-in, or a command."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Awaitable, Callable
from typing import Any

from aenv import plugins
from aenv.errors import UsageError
from aenv.rollout.agents.command import CommandAgent
from aenv.rollout.agents.scripted import gold, nop
from aenv.rollout.agents.tool_loop import tool_loop
from aenv.rollout.episode import Episode
from aenv.rollout.named_objects import load_object, names_object

AGENTS: dict[str, tuple[Callable[[Episode], Awaitable[None]], str]] = {
    "loop": (tool_loop, "a model that calls the tools until it answers without a call"),
    "gold": (gold, "the known solution of each task"),
    "nop": (nop, "does nothing"),
}
"""Ready agents: the agent, and its description."""

PLUGINS = "aenv.agents"
"""Group of entry points with further agents."""


def find_agent(given: Any) -> Callable[[Episode], Awaitable[None]]:
    """Return the agent that ``given`` is or names.

    Raises:
        UsageError: there is none of that name.
    """
    if callable(given):
        return _of_one_argument(given)
    if not isinstance(given, str) or not given.strip():
        raise UsageError(f"invalid agent {given!r}; expected a function, a name or a command")
    if given in AGENTS:
        return AGENTS[given][0]
    if plugins.has(PLUGINS, given):
        return find_agent(plugins.load(PLUGINS, given))
    if names_object(given):
        loaded = load_object(given)
        if not callable(loaded):
            raise UsageError(f"{given} is not a function")
        return find_agent(loaded)
    program = given.split()[0]
    if len(given.split()) > 1 or "/" in given or shutil.which(program):
        return CommandAgent(given)
    if program.endswith(".py"):
        hint = f"Name the function in it, as {program}:NAME, or run it as a command: 'python {program}'."
    else:
        hint = "Name a function as FILE.py:NAME or MODULE:NAME, or give a command."
    known = ", ".join([*AGENTS, *plugins.names(PLUGINS)])
    raise UsageError(f"unknown agent {given!r}; there are: {known}", {"hint": hint})


def _of_one_argument(agent: Callable[..., Awaitable[None]]) -> Callable[[Episode], Awaitable[None]]:
    """Return the agent, if it can be called with an episode.

    Raises:
        UsageError: it takes other arguments.
    """
    try:
        inspect.signature(agent).bind(None)
    except ValueError:  # it has no signature
        return agent
    except TypeError as error:
        name = getattr(agent, "__name__", type(agent).__name__)
        hint = {"hint": "Define it as 'async def agent(episode)'."}
        raise UsageError(f"the agent {name} cannot be called with an episode: {error}", hint) from None
    return agent
