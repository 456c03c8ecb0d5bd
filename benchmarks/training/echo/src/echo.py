from collections.abc import Iterator
from typing import Any

from aenv import register_reward, register_tasks, register_tool

last = ""


@register_tasks
def tasks() -> Iterator[dict[str, Any]]:
    """Return the one task."""
    yield {"id": "echo", "instruction": "Repeat a message."}


@register_tool
def echo_message(message: str) -> str:
    """Repeat a message.

    Args:
        message: The message.
    """
    global last
    last = message
    return message


@register_reward
def length() -> float:
    """Return the length of the last message, as a share of ten."""
    return min(1.0, len(last) / 10)
