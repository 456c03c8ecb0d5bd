"""The environment under test, for us and for aenvironment 0.1.7: one file, both load it as it is."""

from aenv import register_function, register_reward, register_tool


@register_tool
def echo(content: str) -> dict:
    """Give back what came in."""
    return {"result": content}


@register_function
def add(a: int, b: int) -> int:
    return a + b


@register_reward
def score(status: dict) -> float:
    return 1.0 if status.get("completed") else 0.0
