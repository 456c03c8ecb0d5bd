"""The environment: what an agent can do in it, and how well it did.

A decorator only writes down that a function belongs to the environment and hands the function back, so this
module imports and its functions can be called anywhere: here, in a notebook, in tests/.
"""

from typing import Any

from aenv import register_function, register_reward, register_tool


@register_tool
def my_custom_echo_env(content: str) -> dict[str, str]:
    """Give back the text it is given.

    Args:
        content: Any text.
    """
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

    Args:
        task: The task's name, or an object with its `name`, the `output` that came out and, if the task has
            one, the `expected` output.
    """
    if isinstance(task, str):
        task = {"name": task}
    output = task.get("output", "")
    solved = "expected" not in task or output == task["expected"]
    return {
        "task_name": task.get("name", "echo"),
        "status": "completed" if solved else "failed",
        "score": 1.0 if solved else 0.0,
        "raw_output": str(output),
    }
