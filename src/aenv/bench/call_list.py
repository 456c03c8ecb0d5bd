"""The tool calls of an agent, as a result of a benchmark lists them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aenv.authoring.content import text_of

MAX_OUTPUT = 20_000
"""Characters of an output that are kept."""


def calls_of(events: Iterable[Mapping[str, Any]], *, performed: bool = False) -> list[dict[str, Any]]:
    """Return the tool calls among the events of an episode.

    ``performed``: they are the steps of a known solution, whose results are listed under another name.
    """
    calls: dict[str, Mapping[str, Any]] = {}
    found = []
    for event in events:
        if event["kind"] == "call" and event.get("of") == "tool":
            calls[event["id"]] = event
        elif event["kind"] == "result" and event["id"] in calls:
            call = calls.pop(event["id"])
            text = text_of(event["content"]) or str(event.get("error") or "")
            seen = (
                {"result": text, "is_error": event["is_error"]}
                if performed
                else {"output": text[-MAX_OUTPUT:], "seconds": round(event["seconds"], 3)}
            )
            found.append({"tool": call["tool"], "arguments": call["arguments"], **seen})
    return found
