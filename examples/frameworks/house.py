# A house with a thermometer and a heating, and the answers of a model that warms the kitchen.
# Used by the examples beside it: each has an agent of another framework.

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aenv import register_reward, register_tool
from aenv.testing import ModelServer, calls, model_server, running

rooms = {"kitchen": 17.0, "study": 23.5}


@register_tool
def read_thermometer(room: str) -> dict:
    """Read the temperature of a room.

    Args:
        room: Name of the room.
    """
    return {"room": room, "celsius": rooms[room]}


@register_tool
def set_heating(room: str, celsius: float) -> str:
    """Heat a room.

    Args:
        room: Name of the room.
        celsius: How warm it shall be.
    """
    rooms[room] = celsius
    return f"{room} is at {celsius:g} now"


@register_reward
def comfort() -> float:
    """Return 1 when the kitchen is warm enough to cook in."""
    return 1.0 if rooms["kitchen"] >= 20 else 0.0


ANSWER = "The kitchen was cold; I turned the heating up."


def answers(prefix: str = "") -> list:
    """Return the model's answers, turn by turn. ``prefix``: what the framework puts before names of tools."""
    read = calls((f"{prefix}read_thermometer", {"room": "kitchen"}))
    heat = calls((f"{prefix}set_heating", {"room": "kitchen", "celsius": 21.0}))
    return [read, heat, ANSWER]


@contextmanager
def opened(turns: list) -> Iterator[ModelServer]:
    """Serve the house and a model that plays a script; in your own work, name an environment and a real model."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running(__file__, log=Path(folder, "log")) as server,
        model_server(turns) as model,
    ):
        os.environ["AENV_INSTANCE_URL"] = server.url
        yield model
