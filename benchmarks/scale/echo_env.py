"""The environment that is created: one tool, nothing to import but aenv."""

from aenv import register_tool


@register_tool
def echo(content: str) -> dict:
    """Return the argument."""
    return {"result": content}
