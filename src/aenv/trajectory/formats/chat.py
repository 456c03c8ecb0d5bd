"""Chat formats, one JSON object per line: OpenAI's messages, and ShareGPT's conversations."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from aenv.trajectory.events import EpisodeSummary, Event
from aenv.trajectory.formats.conversation import conversation, openai_messages

_SHAREGPT = {"system": "system", "user": "human", "assistant": "gpt", "tool": "observation"}


def facts(summary: EpisodeSummary) -> dict[str, Any]:
    """Return what a training row says about its episode."""
    return {
        "episode": summary.id,
        "run": summary.run,
        "task": summary.task,
        "sample": summary.sample,
        "outcome": summary.outcome,
        "reward": summary.score,
        "model": str(summary.model) if summary.model else None,
        "environment": str(summary.environment.get("name") or "") or None,
    }


def to_messages(summary: EpisodeSummary, events: Iterable[Event]) -> dict[str, Any]:
    """Return an episode as ``messages`` of OpenAI's Chat Completions, with facts about it beside them."""
    return {"messages": list(openai_messages(conversation(events).turns)), **facts(summary)}


def to_sharegpt(summary: EpisodeSummary, events: Iterable[Event]) -> dict[str, Any]:
    """Return an episode as ``conversations`` of ShareGPT: from and value.

    Calls are turns of their own (``function_call``), as LLaMA-Factory reads them; several at once are a JSON list.
    """
    turns: list[dict[str, str]] = []
    for turn in conversation(events).turns:
        if turn.role == "tool" and turns and turns[-1]["from"] == "observation":
            turns[-1]["value"] += f"\n{turn.text}"
            continue
        if turn.text or not turn.calls:
            turns.append({"from": _SHAREGPT.get(turn.role, turn.role), "value": turn.text})
        if turn.calls:
            calls = [{"name": call.name, "arguments": call.as_dict} for call in turn.calls]
            text = json.dumps(calls[0] if len(calls) == 1 else calls, ensure_ascii=False)
            turns.append({"from": "function_call", "value": text})
    return {"conversations": turns, **facts(summary)}
