"""The environment: a tool for the agent, a function for the trainer, and a reward.

A decorator registers a function and returns it unchanged. So you can import this module and call its functions
anywhere: in tests/, in a notebook, in other modules.
"""

import json
from typing import Any

from aenv import private, register_function, register_reward, register_tool

_echoed: list[str] = []
"""Texts that the agent has sent. They are kept in memory: a program of the agent could change a file."""


@register_tool
def my_custom_echo_env(content: str) -> dict[str, str]:
    """Return the given text.

    Args:
        content: Any text.
    """
    _echoed.append(content)
    return {"result": content}


@register_function
def describe_task(task: str = "echo") -> dict[str, str]:
    """Describe a task to the trainer.

    Agents see only the tools; functions are for the program that runs the agent.

    Args:
        task: Name of the task.
    """
    return {"task_name": task, "instruction": "Repeat the user's words with my_custom_echo_env."}


@register_reward
def my_custom_reward(task: dict[str, Any] | str) -> dict[str, Any]:
    """Score an episode: 1.0 if the output is the expected one, or if none is expected; otherwise 0.0.

    The expected outputs are in private/answers.json, which programs started by a tool can neither read nor change.

    Args:
        task: Name of the task, or an object with its `name`. A trainer may add an `output` to score instead of the
            last one, and an `expected` output instead of the stored answer.
    """
    if isinstance(task, str):
        task = {"name": task}
    name = task.get("name", "echo")
    output = task.get("output", _echoed[-1] if _echoed else "")
    expected = task.get("expected", json.loads(private("answers.json").read_text()).get(name))
    solved = expected is None or output == expected
    return {
        "task_name": name,
        "status": "completed" if solved else "failed",
        "score": 1.0 if solved else 0.0,
        "raw_output": str(output),
    }
