"""The environment: what an agent can do in it, and how well it did.

A decorator only writes down that a function belongs to the environment and hands the function back, so this
module imports and its functions can be called anywhere: here, in a notebook, in tests/.
"""

import json
from typing import Any

from aenv import private, register_function, register_reward, register_tool

_echoed: list[str] = []
"""What the agent has done. It is kept here, and not in a file that a program of the agent's could change."""


@register_tool
def my_custom_echo_env(content: str) -> dict[str, str]:
    """Give back the text it is given.

    Args:
        content: Any text.
    """
    _echoed.append(content)
    return {"result": content}


@register_function
def describe_task(task: str = "echo") -> dict[str, str]:
    """Tell a trainer what a task asks for.

    Agents see the tools; functions are for the program around them.

    Args:
        task: The task's name.
    """
    return {"task_name": task, "instruction": "Repeat the user's words with my_custom_echo_env."}


@register_reward
def my_custom_reward(task: dict[str, Any] | str) -> dict[str, Any]:
    """Score an episode: 1.0, or 0.0 when the task expects an output and another one came out.

    The expected outputs are in private/answers.json, which no program that a tool starts can read or change.

    Args:
        task: The task's name, or an object with its `name`. A trainer may add the `output` to score in place of
            the last one, and the `expected` one in place of the answer on file.
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
