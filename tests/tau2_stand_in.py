"""An environment with the functions of tau2-env and one task, for code that uses it where the benchmark is not
installed; and a model that plays the task."""

from __future__ import annotations

from typing import Any

from tests.scripted_model import tool_call

ENV = """
import os

from aenv import register_function, register_reward, register_tool

log, over = [], False

@register_tool
def refund(order: str) -> dict:
    log.append(("refund", order))
    return {"observation": "refunded", "reward": 0.0, "done": False, "step": len(log)}

@register_tool
@register_function
def tau2_get_task_info() -> dict:
    return {"task_id": os.environ.get("TAU2_TASK_ID", "1"), "domain": "retail", "tools": ["refund"]}

@register_function
def tau2_get_system_prompt() -> str:
    return "Serve the customer."

@register_function
def tau2_get_status() -> dict:
    said = [text for kind, text in log if kind == "said"]
    heard = "I want my money back for W1" if not said else "Thank you, bye"
    return {"step": len(log), "max_steps": 9, "done": over, "last_observation": heard,
            "environment": {"solo_mode": False}}

@register_function
def tau2_send_message(message: str) -> dict:
    global over
    log.append(("said", message))
    over = message == "Goodbye"
    return {"observation": "", "reward": 0.0, "done": over}

@register_function
def tau2_done() -> dict:
    global over
    over = True
    return {"done": True}

@register_reward
def tau2_reward() -> dict:
    right = ("refund", "W1") in log and over
    return {"total_reward": 1.0 if right else 0.0, "rewards": [], "done": over, "steps": len(log)}
"""


def servant(messages: list[dict[str, Any]]) -> Any:
    """Refunds when it is asked to, says so, and says goodbye."""
    last = messages[-1]
    if last["role"] == "tool":
        return "It is refunded."
    return tool_call("refund", {"order": "W1"}) if "money back" in str(last["content"]) else "Goodbye"
