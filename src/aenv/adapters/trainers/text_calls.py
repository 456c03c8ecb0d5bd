"""Tool calls as text, in the format of most open models, for trainers that hand over what a model wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

Call = tuple[str, Mapping[str, Any] | str]
_TAGGED = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


def tool_prompt(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return a system prompt that tells a model how to call tools, for a trainer whose chat template does not."""
    listed = "\n".join(json.dumps(tool) for tool in tools)
    return (
        "You can call these tools, given as JSON:\n"
        f"<tools>\n{listed}\n</tools>\n"
        'To call one, write: <tool_call>{"name": NAME, "arguments": ARGUMENTS}</tool_call>\n'
        "When the task is done, answer without a call."
    )


def response(text: str) -> dict[str, str]:
    """Return the message with a tool's result."""
    return {"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>"}


def calls_in(text: str) -> list[Call]:
    """Return the tool calls in a text that a model wrote: tagged ones, or a text that is the JSON of one."""
    tagged = _TAGGED.findall(text)
    if tagged:
        return [_call(part) or ("", part) for part in tagged]  # a call that cannot be read is the tool's error
    found = _call(text)
    return [found] if found else []


def _call(text: str) -> Call | None:
    try:
        data = json.loads(text)
    except ValueError:
        return None
    if not isinstance(data, dict):
        return None
    name = data.get("name", data.get("tool"))
    arguments = data.get("arguments", data.get("parameters", {}))
    if not isinstance(name, str) or not isinstance(arguments, dict | str):
        return None
    return name, arguments
