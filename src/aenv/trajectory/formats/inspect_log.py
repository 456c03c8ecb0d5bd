"""Logs of inspect_ai: written as JSON (log format 2), read as JSON or as ``.eval`` archives.

A task is a sample of the log, and a sample of the task is an epoch. An episode without a reward has no score; one that
failed for a reason that is not the agent's has an error.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from aenv.errors import UsageError
from aenv.trajectory.events import EpisodeSummary, Event, encode
from aenv.trajectory.formats.conversation import Turn, conversation, text_of, tokens_of
from aenv.trajectory.formats.imported import ImportedEpisode

SCORER = "reward"
_LETTERS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
_ERRORS = {"env", "infra", "user", "cancelled"}


def write_log(file: TextIO, episodes: Iterable[tuple[EpisodeSummary, Iterable[Event]]]) -> int:
    """Write a log and return the number of samples. Samples are written one by one; memory stays flat."""
    total, scores = 0, []
    first: EpisodeSummary | None = None
    tasks: dict[str, None] = {}
    epochs, began, ended = 1, math.inf, 0.0
    file.write('{"version":2,"samples":[')
    for summary, events in episodes:
        first = first or summary
        file.write("," if total else "")
        file.write(encode(sample_of(summary, events)))
        total += 1
        tasks[summary.task] = None
        epochs = max(epochs, summary.sample + 1)
        began, ended = min(began, summary.began), max(ended, summary.began + (summary.seconds or 0.0))
        if summary.score is not None:
            scores.append(summary.score)
    header = _header(first, list(tasks), epochs, began if total else 0.0, ended)
    header["results"] = _results(total, scores)
    file.write("]," + encode(header)[1:])
    return total


def sample_of(summary: EpisodeSummary, events: Iterable[Event]) -> dict[str, Any]:
    """Return an episode as a sample of a log."""
    found = conversation(events)
    model = str(summary.model or "none")
    messages = [_message(turn, f"{summary.id}-{number}", model) for number, turn in enumerate(found.turns)]
    task = found.begin.get("task") or {}
    first = next((message for message in messages if message["role"] == "user"), None)
    answers = [message for message in messages if message["role"] == "assistant"]
    usage = {"input_tokens": summary.tokens.get("input", 0), "output_tokens": summary.tokens.get("output", 0)}
    usage["total_tokens"] = usage["input_tokens"] + usage["output_tokens"]
    sample: dict[str, Any] = {
        "id": summary.task,
        "epoch": summary.sample + 1,
        "input": text_of(task.get("instruction")) or (text_of(first["content"]) if first else ""),
        "target": "",
        "messages": messages,
        "output": _output(answers, model),
        "scores": None if summary.score is None else {SCORER: _score(summary)},
        "metadata": {
            "episode": summary.id, "run": summary.run, "attempt": summary.attempt, "outcome": summary.outcome,
            "reward": summary.reward, "seed": summary.seed, "final": summary.final,
            "environment": dict(summary.environment), "agent": dict(summary.agent),
        },
        "model_usage": {model: usage},
        "started_at": _moment(summary.began),
        "completed_at": _moment(summary.began + (summary.seconds or 0.0)),
        "total_time": summary.seconds,
        "uuid": summary.id,
    }  # fmt: skip
    if summary.outcome in _ERRORS or summary.state != "ended":
        why = text_of(summary.error) or summary.outcome or summary.state
        sample["error"] = {"message": why, "traceback": "", "traceback_ansi": ""}
    return {name: value for name, value in sample.items() if value is not None}


def read_log(path: Path) -> Iterator[ImportedEpisode]:
    """Yield the samples of a log as episodes.

    Raises:
        UsageError: the file is not a log of inspect_ai, or needs its package.
    """
    header, samples = _read_archive(path) if path.suffix == ".eval" else _read_json(path)
    if not isinstance(header.get("eval"), Mapping):
        raise UsageError(f"{path} is not a log of inspect_ai")
    for sample in samples:
        yield _episode(header, sample)


# --- export


def _message(turn: Turn, id: str, model: str) -> dict[str, Any]:
    message: dict[str, Any] = {"id": id, "role": turn.role, "content": _content(turn.content)}
    if turn.role == "assistant":
        message |= {"source": "generate", "model": str(turn.event.get("model") or model)}
        if turn.calls:
            message["tool_calls"] = [
                {"id": call.id, "function": call.name, "arguments": call.as_dict, "type": "function"}
                for call in turn.calls
            ]
        inputs, outputs = tokens_of(turn.event)
        extra = {"input_tokens": inputs, "output_tokens": outputs, "token_ids": turn.event.get("token_ids")}
        known = {name: value for name, value in extra.items() if value is not None}
        if known:
            message["metadata"] = known
    elif turn.role == "tool":
        message["tool_call_id"] = turn.call_id
        if turn.result.get("is_error"):
            message["error"] = {"type": "unknown", "message": text_of(turn.content)}
    else:
        message["source"] = "input"
    return message


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return text_of(content)
    parts: list[dict[str, Any]] = []
    for part in content:
        if isinstance(part, Mapping) and part.get("type") == "image" and part.get("data"):
            parts.append({"type": "image", "image": f"data:{part.get('mimeType')};base64,{part['data']}"})
        elif isinstance(part, Mapping) and part.get("type") == "image_url":
            parts.append({"type": "image", "image": str((part.get("image_url") or {}).get("url") or "")})
        else:
            parts.append({"type": "text", "text": text_of([part])})
    return parts


def _output(answers: list[dict[str, Any]], model: str) -> dict[str, Any]:
    if not answers:
        return {"model": model, "choices": [], "completion": ""}
    return {
        "model": model,
        "choices": [{"message": answers[-1], "stop_reason": "stop"}],
        "completion": text_of(answers[-1]["content"]),
    }


def _score(summary: EpisodeSummary) -> dict[str, Any]:
    metadata = {"reward": summary.reward} if isinstance(summary.reward, Mapping) else None
    score: dict[str, Any] = {
        "value": summary.score,
        "explanation": summary.failure_reason,
        "metadata": metadata,
        "history": [],
    }
    return {name: value for name, value in score.items() if value is not None}


def _header(first: EpisodeSummary | None, tasks: list[str], epochs: int, began: float, ended: float) -> dict[str, Any]:
    environment = dict(first.environment) if first else {}
    return {
        "status": "success",
        "eval": {
            "eval_id": first.run if first else "",
            "run_id": first.run if first else "",
            "created": _moment(began),
            "task": str(environment.get("name") or "aenv"),
            "task_id": first.run if first else "",
            "task_version": str(environment.get("version") or 0),
            "solver": str(first.agent.get("name") or "agent") if first else "agent",
            "dataset": {"name": str(environment.get("name") or "aenv"), "samples": len(tasks), "sample_ids": tasks},
            "model": str((first.model if first else None) or "none/none"),
            "config": {"epochs": epochs},
            "packages": {},
        },
        "plan": {"name": "plan", "steps": [], "config": {}},
        "stats": {"started_at": _moment(began), "completed_at": _moment(ended), "model_usage": {}},
    }


def _results(total: int, scores: list[float]) -> dict[str, Any]:
    found: dict[str, Any] = {"total_samples": total, "completed_samples": len(scores), "scores": []}
    if scores:
        mean = math.fsum(scores) / len(scores)
        found["scores"] = [
            {
                "name": SCORER,
                "scorer": SCORER,
                "scored_samples": len(scores),
                "unscored_samples": total - len(scores),
                "metrics": {"mean": {"name": "mean", "value": mean}},
            }
        ]
    return found


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


# --- import


def _read_json(path: Path) -> tuple[Mapping[str, Any], Iterable[Mapping[str, Any]]]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, Mapping):
        raise UsageError(f"{path} is not a log of inspect_ai")
    return document, document.get("samples") or []


def _read_archive(path: Path) -> tuple[Mapping[str, Any], Iterable[Mapping[str, Any]]]:
    archive = zipfile.ZipFile(path)
    names = [name for name in archive.namelist() if name.startswith("samples/")]
    try:
        header = json.loads(archive.read("header.json"))
    except NotImplementedError:  # compressed with Zstandard, which needs a newer Python or inspect_ai
        return _read_with_package(path)
    return header, (json.loads(archive.read(name)) for name in names)


def _read_with_package(path: Path) -> tuple[Mapping[str, Any], Iterable[Mapping[str, Any]]]:
    try:
        from inspect_ai.log import read_eval_log
    except ImportError:
        raise UsageError(
            f"{path} is compressed in a way that this Python cannot read",
            {"hint": f"Convert it: inspect log convert {path} --to json --output-dir .; or: pip install inspect-ai"},
        ) from None
    document = json.loads(read_eval_log(str(path)).model_dump_json())
    return document, document.get("samples") or []


def _episode(header: Mapping[str, Any], sample: Mapping[str, Any]) -> ImportedEpisode:
    spec = header["eval"]
    own = sample.get("metadata") or {}
    ours = own if "episode" in own else {}
    score, reward = _score_of(sample.get("scores") or {})
    environment = ours.get("environment") or {"name": spec.get("task"), "version": str(spec.get("task_version") or "")}
    return ImportedEpisode(
        run=ours.get("run"),
        task=str(sample.get("id")),
        sample=int(sample.get("epoch") or 1) - 1,
        attempt=int(ours.get("attempt") or 0),
        begin={
            "environment": environment,
            "agent": ours.get("agent") or {"name": spec.get("solver") or "inspect_ai"},
            "model": spec.get("model"),
            "task": {"instruction": text_of(_input(sample.get("input"))), "target": sample.get("target")},
            "seed": ours.get("seed"),
            "imported": {"format": "inspect_ai", "eval_id": spec.get("eval_id"), "uuid": sample.get("uuid")},
        },
        events=list(_events(sample)),
        end={
            "outcome": ours.get("outcome") or _outcome(sample),
            "reward": ours.get("reward", reward),
            "score": score,
            "final": ours.get("final", True),
            "seconds": sample.get("total_time"),
            "tokens": _tokens(sample.get("model_usage") or {}),
            "error": (sample.get("error") or {}).get("message"),
        },
    )


def _input(value: Any) -> Any:
    return (
        value
        if isinstance(value, str)
        else [part for each in value or () for part in [{"text": text_of(each.get("content"))}]]
    )


def _outcome(sample: Mapping[str, Any]) -> str:
    if sample.get("error"):
        return "infra"
    return "timeout" if sample.get("limit") else "ok"


def _score_of(scores: Mapping[str, Any]) -> tuple[float | None, Any]:
    """Return the first score as a number, and as it was."""
    for score in scores.values():
        value = score.get("value")
        number = _LETTERS.get(value) if isinstance(value, str) else value
        if isinstance(number, bool | int | float) and math.isfinite(number):
            return float(number), float(number) if len(scores) == 1 else {n: s.get("value") for n, s in scores.items()}
    return None, None


def _tokens(usage: Mapping[str, Any]) -> dict[str, int]:
    return {
        "input": sum(int(each.get("input_tokens") or 0) for each in usage.values()),
        "output": sum(int(each.get("output_tokens") or 0) for each in usage.values()),
    }


def _events(sample: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    at = _at(sample.get("started_at"))
    for message in sample.get("messages") or ():
        role, content = message.get("role"), message.get("content")
        if role == "tool":
            parts = [{"type": "text", "text": text_of(content)}]
            failed = message.get("error")
            yield {
                **at, "kind": "result", "id": str(message.get("tool_call_id")), "content": parts,
                "is_error": bool(failed), **({"error": failed.get("message")} if failed else {}),
            }  # fmt: skip
            continue
        calls = message.get("tool_calls") or []
        asked = [
            {"id": c["id"], "type": "function", "function": {"name": c["function"], "arguments": c["arguments"]}}
            for c in calls
        ]
        more = {"tool_calls": asked} if asked else {}
        if role == "assistant" and message.get("model"):
            more["model"] = message["model"]
        yield {**at, "kind": "message", "role": role, "content": _plain(content), **more}
        for call in calls:
            arguments = call["arguments"]
            yield {
                **at,
                "kind": "call",
                "id": call["id"],
                "of": "tool",
                "tool": call["function"],
                "arguments": arguments,
            }


def _plain(content: Any) -> Any:
    """Return content in OpenAI's form."""
    if not isinstance(content, list):
        return content
    parts: list[dict[str, Any]] = []
    for part in content:
        if part.get("type") == "image":
            parts.append({"type": "image_url", "image_url": {"url": part.get("image")}})
        else:
            text = part.get("text") or part.get("reasoning") or f"[{part.get('type')}]"
            parts.append({"type": "text", "text": text})
    return parts


def _at(text: Any) -> dict[str, float]:
    return {"at": datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()} if isinstance(text, str) else {}
