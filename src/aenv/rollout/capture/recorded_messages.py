"""Messages of an agent's requests in the form in which they are recorded.

An agent may send anything as a message. Its record must stay readable, and must not say what only the model's server or
this proxy can know: token ids, log-probabilities, usage, times, the number of an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aenv.rollout.wires.base import objects

OTHER = "other_fields"
"""Field of a recorded message with the fields that it cannot have by these names or in this form."""
_KNOWN_BY_OTHERS = frozenset(
    (
        "seq", "at", "kind", "thread", "api", "request", "messages", "model", "usage", "usage_estimated", "seconds",
        "first_byte_seconds", "first_token_seconds", "finish_reason", "prompt_token_ids", "token_ids", "logprobs",
        "bytes", "bytes_left_out", "cut", "stream", "response", OTHER,
    )
)  # fmt: skip
_TEXTS = ("role", "tool_call_id", "name")


def recorded(message: Mapping[str, Any], *, default_role: str = "user") -> dict[str, Any]:
    """Return a message as it is recorded: with all that it says, in the form of Chat Completions."""
    kept = {name: value for name, value in message.items() if name not in _KNOWN_BY_OTHERS}
    other = {name: value for name, value in message.items() if name in _KNOWN_BY_OTHERS}
    for name in _TEXTS:
        if name in kept and not (kept[name] is None or isinstance(kept[name], str)):
            other[name] = kept.pop(name)
    calls = kept.pop("tool_calls", None)
    if calls:
        valid = [each for each in objects(calls) if isinstance(each.get("function") or {}, dict)]
        if valid:
            kept["tool_calls"] = valid
        if not isinstance(calls, list) or len(valid) < len(calls):
            other["tool_calls"] = calls
    kept["role"] = kept.get("role") or default_role
    kept.setdefault("content", None)
    return {**kept, OTHER: other} if other else kept
