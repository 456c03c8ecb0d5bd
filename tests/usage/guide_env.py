"""An environment as a user writes it: a terminal, tools of all plain types, a reward, a function, a health check."""

import os
import subprocess
import sys
from typing import Any, Optional

from pydantic import BaseModel

from aenv import register_function, register_health, register_reward, register_tool


@register_tool
def execute_command(command: str, timeout=60):
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=timeout)
    return {"output": [done.stdout, done.returncode == 0], "returncode": done.returncode}


@register_tool
def repeat(content: str) -> dict[str, Any]:
    """
    Say it again.

    Whatever comes in goes out.

    Args:
        content: Any text at all

    Returns:
        The text, under "result"
    """
    return {"result": f"{content}"}


@register_tool
def order(name: str, count: int, price: float, paid: bool, tags: list[str]) -> str:
    return f"{count} x {name} at {price}, {'paid' if paid else 'open'}, {'+'.join(tags)}"


@register_tool
def greet(name: Optional[str] = None, numbers: list[int] = [1, 2]) -> str:  # noqa: B006, UP045
    return f"{name or 'nobody'} {sum(numbers)}"


class Search(BaseModel):
    query: str
    max_results: int = 10
    details: bool = False


@register_tool
def find_users(params: Search) -> str:
    return f"{params.query} {params.max_results} {params.details}"


@register_reward
def code_quality(code: str, test_results: dict) -> dict:
    """Judge code by its tests and its length.

    Args:
        code: The code
        test_results: How many passed and failed
    """
    score, feedback = 0.0, []
    if test_results.get("passed", 0) > 0:
        score += 0.5
        feedback.append("passes")
    if len(code) < 100:
        score += 0.25
        feedback.append("short")
    return {"score": score, "feedback": "; ".join(feedback), "details": test_results}


@register_function
def inspect_process(variable: str) -> dict:
    """Return the variables and arguments of this instance."""
    return {"variable": os.environ.get(variable), "arguments": sys.argv[1:]}


@register_function
def wrap(data: dict) -> dict:
    """Answer at a custom endpoint."""
    return {"status": "success", "data": data}


@register_health
def system_health() -> dict:
    """Return the state of the machine."""
    import psutil

    return {
        "status": "healthy",
        "cpu_percent": psutil.cpu_percent(),
        "memory_percent": psutil.virtual_memory().percent,
        "disk_usage": psutil.disk_usage("/").percent,
    }
