"""The smallest environment with everything in it: somebody comes in, and an agent greets them by name.

Who comes in depends on the variable VISITOR, so a trainer can make as many different episodes as there are names.
"""

import os
import re
from typing import Any

from aenv import register_function, register_reward, register_tool

VISITOR = os.environ.get("VISITOR") or "Ada"
said: list[str] = []


@register_tool
def ask_name() -> str:
    """Ask the visitor for their name."""
    return f"My name is {VISITOR}."


@register_tool
def say(text: str) -> str:
    """Say something to the visitor.

    Args:
        text: The words.
    """
    said.append(text)
    return "Hello to you, too!" if greets(text) else "Have we met?"


@register_function
def get_task() -> dict[str, Any]:
    """Tell a trainer what the agent is to do."""
    return {"instruction": "A visitor came in. Find out their name, then greet them by it.", "max_steps": 5}


@register_reward
def greeted() -> dict[str, Any]:
    """Score the episode: 1.0 when the visitor was greeted by name, less the more was said in vain."""
    tries = next((number for number, text in enumerate(said, 1) if greets(text)), 0)
    return {"score": 1.0 / tries if tries else 0.0, "said": len(said)}


def greets(text: str) -> bool:
    """Whether these words greet the visitor by name."""
    words = re.findall(r"\w+", text.casefold())
    return VISITOR.casefold() in words and bool({"hello", "hi", "welcome", "hey"} & set(words))
