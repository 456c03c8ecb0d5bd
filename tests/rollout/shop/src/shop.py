"""A small environment with tasks, and a tool for each kind of failure."""

import os
import time
from collections.abc import Iterator
from typing import Any

from aenv import StateDestroyed, UserFailed, register_function, register_reward, register_tasks, register_tool

cart: dict[str, int] = {}
state = {"destroyed": False, "broken": False}


@register_tool
def add_to_cart(item: str, count: int = 1) -> dict[str, Any]:
    """Put something into the shopping cart."""
    cart[item] = cart.get(item, 0) + count
    return {"cart": cart}


@register_tool
def fail() -> None:
    """Raise."""
    raise RuntimeError("the shelf is broken")


@register_tool
def nap(seconds: float) -> str:
    """Sleep."""
    time.sleep(seconds)
    return "slept"


@register_tool
def ask_user(question: str) -> str:
    """Ask a simulated user, whose model is down."""
    raise UserFailed("the model of the user is unreachable")


@register_tool
def destroy() -> str:
    """Destroy what is graded."""
    state["destroyed"] = True
    return "gone"


@register_tool
def break_reward() -> str:
    """Make the reward raise."""
    state["broken"] = True
    return "broken"


@register_tool
def leave() -> None:
    """End the instance, as a crash of the environment's code does."""
    os._exit(3)


@register_tool
def end_by_signal() -> None:
    """End the instance with the status that it has when a program of the agent stopped it."""
    os._exit(143)


@register_function
def start(name: str = "nobody", fails: bool = False) -> dict[str, str]:
    """Prepare an episode."""
    if fails:
        raise RuntimeError("no shop today")
    return {"instruction": f"Serve {name}."}


@register_function
def variables(names: list[str]) -> list[str | None]:
    """Return the values of environment variables."""
    return [os.environ.get(name) for name in names]


@register_function
def pid() -> int:
    """Tell the process apart from others."""
    return os.getpid()


@register_reward
def bought(wanted: dict[str, int]) -> float:
    """1 when the cart holds just what was wanted."""
    if state["destroyed"]:
        raise StateDestroyed("the agent has burnt the cart")
    if state["broken"]:
        raise RuntimeError("the scales are broken")
    return 1.0 if cart == wanted else 0.0


@register_tasks
def tasks(count: int = 4) -> Iterator[dict[str, Any]]:
    """Buy apples."""
    for number in range(1, count + 1):
        yield {
            "id": f"apples-{number}",
            "prompt": f"Buy {number} apples.",
            "reward": {"arguments": {"wanted": {"apple": number}}},
            "solution": [{"tool": "add_to_cart", "arguments": {"item": "apple", "count": number}}],
        }
