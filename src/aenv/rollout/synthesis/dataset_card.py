"""The card of a synthesised dataset: what is in it, how it was made, and what was rejected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aenv import __version__


def card_of(request: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """Return the card as Markdown."""
    grader = (request.get("reward") or {}).get("name")
    graded = (
        f"by the environment's own reward `{grader}`"
        if grader
        else "by the state that its solution leaves, as the environment's own tools show it"
    )
    parts = [
        f"# Synthesised tasks of {request['environment']}",
        f"{summary['tasks']} tasks ({summary['wanted']} were asked for) with {summary['shapes']} shapes of calls over "
        f"{len(summary['tools'])} tools.",
        "The known solution of each task got 1, and doing nothing got 0, in rollouts of this dataset. A task is graded "
        f"{graded}. No two tasks call the same tools equally often, or make the same kinds of calls: they differ by "
        "more than parameters, order and repetition.",
        _table(("made with", ""), _origin(request, summary).items()),
        "## Tasks",
        _table(("tool", "tasks that use it"), summary["tools"].items()),
        _table(("calls", "tasks"), summary["calls"].items()),
        _table(("proposed by", "tasks"), summary["sources"].items()),
        "## Rejected proposals",
        _table(("reason", "proposals"), summary["rejected"].items()),
        "## Tools",
    ]
    for number, tools in enumerate(summary["surveyed"]):
        if len(summary["surveyed"]) > 1:
            parts.append(f"Start {number}:")
        parts.append(_tools_table(tools))
    return "\n\n".join(parts) + "\n"


def _origin(request: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return with what the dataset was made, by name."""
    info = request.get("environment_info") or {}
    return {
        "environment": info.get("name") or request["environment"],
        "version": info.get("version") or "none",
        "digest": info.get("digest") or "none",
        "generator": f"aenv {__version__}, generator {request['generator']}",
        "seed": request["seed"],
        "starts": summary["starts"],
        "model": request["model"] or "none",
        "model requests": summary["model"]["requests"],
        "tokens read / written": f"{summary['model']['input_tokens']} / {summary['model']['output_tokens']}",
        "cost": f"{summary['model']['cost']:.4f}",
        "proposals": summary["proposals"],
        **{f"solved by {agent}": found for agent, found in summary["solved"].items()},
    }


def _tools_table(tools: Mapping[str, Any]) -> str:
    rows = (
        (name, each["effect"], "accepted" if each["good_arguments"] else "none found", each["bad_arguments"])
        for name, each in tools.items()
    )
    return _table(("tool", "effect", "good arguments", "bad arguments"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in row)} |" for row in lines)
