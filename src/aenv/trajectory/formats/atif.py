"""ATIF 1.8, the Agent Trajectory Interchange Format of Harbor: one JSON document per episode.

Steps are numbered from 1. A tool's answer is the observation of the step that asked for it. What ATIF has no field for
is in ``extra["aenv"]``, so that an import gives back task, outcome and reward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from aenv.errors import UsageError
from aenv.trajectory.events import EpisodeSummary, Event
from aenv.trajectory.formats.conversation import Turn, conversation, numbers, text_of, tokens_of
from aenv.trajectory.formats.imported import ImportedEpisode

VERSION = "ATIF-v1.8"
_IMAGES = {"image/jpeg", "image/png", "image/gif", "image/webp"}


def to_atif(summary: EpisodeSummary, events: Iterable[Event]) -> dict[str, Any]:
    """Return an episode as an ATIF document."""
    found = conversation(events, whole=True)
    steps = _steps(found.turns)
    agent, begin = summary.agent, found.begin
    aenv = {
        "run": summary.run, "task": begin.get("task"), "sample": summary.sample, "attempt": summary.attempt,
        "environment": summary.environment, "seed": summary.seed, "sampling": begin.get("sampling"),
        "labels": summary.labels, "parents": list(summary.parents), "versions": begin.get("versions"),
        "state": summary.state, "outcome": summary.outcome, "reward": summary.reward, "score": summary.score,
        "final": summary.final, "failure_reason": summary.failure_reason, "fault": summary.fault,
        "error": summary.error, "seconds": summary.seconds, "calls": found.other_calls,
    }  # fmt: skip
    document: dict[str, Any] = _without_none(
        {
            "schema_version": VERSION,
            "session_id": summary.run,
            "trajectory_id": summary.id,
            "agent": {
                "name": str(agent.get("name") or "unknown"),
                "version": str(agent.get("version") or agent.get("digest") or "unknown"),
                "model_name": str(summary.model) if summary.model else None,
            },
            "steps": steps or [{"step_id": 1, "source": "system", "message": ""}],
            "final_metrics": {
                "total_prompt_tokens": summary.tokens.get("input"),
                "total_completion_tokens": summary.tokens.get("output"),
                "total_cost_usd": summary.cost,
                "total_steps": len(steps) or 1,
            },
            "extra": {"aenv": {name: value for name, value in aenv.items() if value not in (None, {}, [])}},
        }
    )
    return document


def from_atif(document: Mapping[str, Any]) -> ImportedEpisode:
    """Return the episode of an ATIF document of any version.

    Raises:
        UsageError: it is not one.
    """
    version = str(document.get("schema_version"))
    if not version.startswith("ATIF-v1.") or not isinstance(document.get("steps"), list):
        raise UsageError("this is not an ATIF document: it has no steps, or no schema_version ATIF-v1.x")
    agent = document.get("agent") or {}
    aenv = (document.get("extra") or {}).get("aenv") or {}
    metrics = document.get("final_metrics") or {}
    task = aenv.get("task") or {}
    known = {name: aenv.get(name) for name in ("environment", "seed", "sampling", "labels", "parents", "versions")}
    identity = document.get("trajectory_id") or document.get("session_id")
    begin = {
        **{name: value for name, value in known.items() if value is not None},
        "agent": {name: agent[name] for name in ("name", "version") if agent.get(name)},
        "model": agent.get("model_name"),
        "task": task,
        "imported": {"format": version, "session_id": document.get("session_id"), "trajectory_id": identity},
    }
    ended = aenv.get("state", "ended") == "ended"
    end = {
        "outcome": aenv.get("outcome") or "ok",
        "reward": aenv.get("reward"),
        "final": aenv.get("final", True),
        "tokens": {"input": metrics.get("total_prompt_tokens"), "output": metrics.get("total_completion_tokens")},
        "cost": metrics.get("total_cost_usd"),
        **{name: aenv.get(name) for name in ("score", "failure_reason", "fault", "error", "seconds")},
    }
    return ImportedEpisode(
        run=aenv.get("run"),
        task=str(task.get("id") or identity or "imported"),
        sample=int(aenv.get("sample") or 0),
        attempt=int(aenv.get("attempt") or 0),
        begin=begin,
        events=list(_events(document["steps"])),
        end=end if ended else None,
    )


# --- export


def _steps(turns: Iterable[Turn]) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    for turn in turns:
        if turn.role == "tool":
            _observe(steps, turn)
            continue
        source = {"assistant": "agent", "user": "user"}.get(turn.role, "system")
        step: dict[str, Any] = {
            "step_id": len(steps) + 1,
            "timestamp": datetime.fromtimestamp(turn.at, UTC).isoformat(),
            "source": source,
            "message": _content(turn.content),
        }
        if turn.copied:
            step["is_copied_context"] = True
        if source == "agent":
            step |= _agent_fields(turn)
        steps.append(step)
    return steps


def _agent_fields(turn: Turn) -> dict[str, Any]:
    event = turn.event
    inputs, outputs = tokens_of(event)
    metrics = {
        "prompt_tokens": inputs,
        "completion_tokens": outputs,
        "prompt_token_ids": event.get("prompt_token_ids"),
        "completion_token_ids": event.get("token_ids"),
        "logprobs": numbers(event.get("logprobs")),
        "cost_usd": event.get("cost"),
    }
    extra = {name: event[name] for name in ("finish_reason", "seconds") if event.get(name) is not None}
    calls = [{"tool_call_id": call.id, "function_name": call.name, "arguments": call.as_dict} for call in turn.calls]
    return {
        "model_name": event.get("model"),
        "reasoning_content": text_of(event.get("reasoning_content")) or None,
        "tool_calls": calls or None,
        "metrics": metrics if any(value is not None for value in metrics.values()) else None,
        "llm_call_count": 1 if event else 0,
        "extra": extra or None,
    }


def _observe(steps: list[dict[str, Any]], turn: Turn) -> None:
    """Add a tool's answer to the step that asked for it; without one, as a step of the system."""
    result = turn.result
    extra = {name: result[name] for name in ("is_error", "fault", "seconds", "structured") if result.get(name)}
    content = result.get("content") or turn.content
    observed: dict[str, Any] = {"content": _content(content), "extra": extra or None}
    for step in reversed(steps):
        if any(call["tool_call_id"] == turn.call_id for call in step.get("tool_calls") or ()):
            step.setdefault("observation", {"results": []})["results"].append(
                {"source_call_id": turn.call_id, **observed}
            )
            return
    steps.append({"step_id": len(steps) + 1, "source": "system", "message": "", "observation": {"results": [observed]}})


def _content(content: Any) -> Any:
    """Return content as text, or as parts if it has images."""
    if not isinstance(content, list) or not any(_image(part) for part in content):
        return text_of(content)
    parts = []
    for part in content:
        image = _image(part)
        if image is not None:
            parts.append({"type": "image", "source": {"media_type": image[0], "path": image[1]}})
        else:
            parts.append({"type": "text", "text": text_of([part])})
    return parts


def _image(part: Any) -> tuple[str, str] | None:
    """Return type and URL of an image part, in MCP's form or in OpenAI's."""
    if not isinstance(part, Mapping):
        return None
    if part.get("type") == "image" and part.get("mimeType") in _IMAGES:
        return str(part["mimeType"]), f"data:{part['mimeType']};base64,{part.get('data', '')}"
    if part.get("type") == "image_url":
        url = str((part.get("image_url") or {}).get("url") or "")
        kind = url[5:].partition(";")[0] if url.startswith("data:") else "image/png"
        return (kind, url) if kind in _IMAGES else None
    return None


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_none(each) for name, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, list | tuple) else value


# --- import


def _events(steps: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for step in steps:
        at = _seconds(step.get("timestamp"))
        source = step.get("source")
        calls = step.get("tool_calls") or []
        by_llm = source == "agent" and step.get("llm_call_count") != 0
        if by_llm or (source != "agent" and step.get("message")):
            yield {**at, "kind": "message", **_message(step, calls)}
        names = {call["tool_call_id"]: call for call in calls}
        for call in calls:
            yield {
                **at, "kind": "call", "id": call["tool_call_id"], "of": "tool", "tool": call["function_name"],
                "arguments": call.get("arguments") or {},
            }  # fmt: skip
        for result in (step.get("observation") or {}).get("results") or ():
            id = result.get("source_call_id")
            extra = result.get("extra") or {}
            content = _mcp(result.get("content"))
            if id in names:
                more = {name: extra[name] for name in ("fault", "seconds", "structured") if name in extra}
                is_error = bool(extra.get("is_error"))
                yield {**at, "kind": "result", "id": id, "content": content, "is_error": is_error, **more}
            else:
                yield {**at, "kind": "message", "role": "user", "content": text_of(content)}


def _message(step: Mapping[str, Any], calls: list[dict[str, Any]]) -> dict[str, Any]:
    metrics = step.get("metrics") or {}
    usage = {"input_tokens": metrics.get("prompt_tokens"), "output_tokens": metrics.get("completion_tokens")}
    asked = [
        {
            "id": call["tool_call_id"],
            "type": "function",
            "function": {"name": call["function_name"], "arguments": call.get("arguments") or {}},
        }
        for call in calls
    ]
    fields = {
        "role": {"agent": "assistant", "user": "user"}.get(str(step.get("source")), "system"),
        "content": _openai(step.get("message")),
        "reasoning_content": step.get("reasoning_content"),
        "tool_calls": asked or None,
        "model": step.get("model_name"),
        "usage": usage if any(value is not None for value in usage.values()) else None,
        "prompt_token_ids": metrics.get("prompt_token_ids"),
        "token_ids": metrics.get("completion_token_ids"),
        "logprobs": metrics.get("logprobs"),
        **(step.get("extra") or {}),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _openai(message: Any) -> Any:
    if not isinstance(message, list):
        return message or ""
    return [
        {"type": "image_url", "image_url": {"url": part["source"]["path"]}}
        if part.get("type") == "image"
        else {"type": "text", "text": part.get("text") or f"[{part.get('type')}]"}
        for part in message
    ]


def _mcp(content: Any) -> list[dict[str, Any]]:
    if not isinstance(content, list):
        return [{"type": "text", "text": content or ""}]
    parts: list[dict[str, Any]] = []
    for part in content:
        path = str((part.get("source") or {}).get("path") or "")
        if part.get("type") == "image" and path.startswith("data:") and ";base64," in path:
            kind, _, data = path[5:].partition(";base64,")
            parts.append({"type": "image", "mimeType": kind, "data": data})
        else:
            parts.append({"type": "text", "text": part.get("text") or path or f"[{part.get('type')}]"})
    return parts


def _seconds(timestamp: Any) -> dict[str, float]:
    if not isinstance(timestamp, str):
        return {}
    return {"at": datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()}
