"""Episodes as text for a terminal. What was recorded is foreign text: control characters are replaced."""

from __future__ import annotations

import difflib
import json
import re
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from aenv.cli.output import columns
from aenv.trajectory.difference import Difference
from aenv.trajectory.events import EpisodeSummary, Event, RunRecord
from aenv.trajectory.statistics import RunStatistics

LINES = 12
"""Lines of one text, unless all are wanted."""
TASKS = 30
"""Tasks in the table of statistics, unless all are wanted."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_COLORS = {
    "system": "magenta", "user": "cyan", "assistant": "green", "tool": "white", "call": "yellow", "result": "white",
    "reward": "yellow", "note": "blue", "state": "blue", "usage": "blue", "begin": "white", "end": "white",
}  # fmt: skip
_OUTCOMES = {"ok": "green", "policy": "yellow", "timeout": "yellow"}


def clean(text: str) -> str:
    """Return text without what could move the cursor or hide other text."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


# --- lists


def episode_table(episodes: Sequence[EpisodeSummary]) -> str:
    """Return a table of episodes."""
    if not episodes:
        return "no episodes"
    head = (
        "EPISODE",
        "TASK",
        "SAMPLE",
        "OUTCOME",
        "REWARD",
        "STEPS",
        "TIME",
        "TOKENS",
        "ENVIRONMENT",
        "AGENT",
        "BEGAN",
    )
    return columns([head, *map(_cells, episodes)], indent="")


def run_table(rows: Sequence[tuple[RunRecord, Mapping[str, int]]]) -> str:
    """Return a table of runs with the numbers of their episodes."""
    if not rows:
        return "no runs"
    lines = [("RUN", "EPISODES", "OUTCOMES", "BEGAN", "TITLE")]
    for run, counts in rows:
        outcomes = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        lines.append((clean(run.id), str(sum(counts.values())), outcomes, _moment(run.created), clean(run.title)))
    return columns(lines, indent="")


def _cells(each: EpisodeSummary) -> tuple[str, ...]:
    attempt = f" (attempt {each.attempt})" if each.attempt else ""
    return (
        each.id,
        clean(textwrap.shorten(each.task, 40)),
        f"{each.sample}{attempt}",
        clean(each.outcome or each.state),
        _reward(each.score if each.score is not None else each.reward),
        "-" if each.steps is None else str(each.steps),
        "-" if each.seconds is None else _seconds(each.seconds),
        _tokens(each.tokens),
        clean(_environment(each.environment)),
        clean(str(each.agent.get("name") or "-")),
        _moment(each.began),
    )


# --- one episode


def heading(episode: EpisodeSummary) -> str:
    """Return what an episode is about and how it ended."""
    outcome = clean(episode.outcome or episode.state)
    state = click.style(outcome, fg=_OUTCOMES.get(outcome, "red"), bold=True)
    reward = ""
    if episode.state == "ended":
        reward = "  no reward" if episode.reward is None else f"  reward {_reward(episode.reward)}"
    rows = [
        ("task", f"{episode.task}, sample {episode.sample}, attempt {episode.attempt}"),
        ("run", episode.run),
        ("environment", _environment(episode.environment)),
        ("agent", str(episode.agent.get("name") or "-")),
        ("model", str(episode.model) if episode.model else "-"),
        ("began", _moment(episode.began)),
    ]
    if episode.seconds is not None:
        used = f", {_tokens(episode.tokens)} tokens" if any(episode.tokens.values()) else ""
        cost = f", {episode.cost:.4f} USD" if episode.cost else ""
        rows.append(("used", f"{_seconds(episode.seconds)}, {_steps(episode.steps)}{used}{cost}"))
    rows += [(str(each.get("kind")), str(each.get("episode"))) for each in episode.parents]
    if not episode.final and episode.state == "ended":
        rows.append(("note", "not the result of its sample: it was attempted again"))
    for name in ("failure_reason", "error"):
        if getattr(episode, name):
            rows.append((name.replace("_", " "), _text(getattr(episode, name))))
    return f"{click.style(episode.id, bold=True)}  {state}{reward}\n" + columns(
        [(name, clean(text)) for name, text in rows]
    )


class EventView:
    """Turns the events of one episode into lines, one event after the other."""

    def __init__(self, width: int, *, full: bool = False, kinds: frozenset[str] = frozenset()) -> None:
        self._width = max(width, 40)
        self._full = full
        self._kinds = kinds
        self._began: float | None = None
        self._answered: set[str] = set()
        self._announced: dict[str, str] = {}
        """Calls that a message of the model has shown, by id."""

    def lines(self, event: Event) -> Iterator[str]:
        """Yield the lines of an event; none if it repeats what was shown, or is not wanted."""
        if self._began is None:
            self._began = event["at"]
        kind = event["kind"]
        label, texts, aside = self._parts(event)
        label, aside = None if label is None else clean(label).replace("\n", " "), clean(aside)
        if kind == "result":
            self._answered.add(str(event.get("id")))
        if label is None or (self._kinds and kind not in self._kinds):
            return
        yield from self._block(event, label, texts, aside)

    def _parts(self, event: Event) -> tuple[str | None, list[str], str]:
        """Return label, texts and remark of an event."""
        kind = event["kind"]
        if kind == "begin":
            instruction = (event.get("task") or {}).get("instruction")
            return (None, [], "") if not instruction or not self._full else ("begin", [_text(instruction)], "")
        if kind == "message":
            return self._message(event)
        if kind == "call":
            of = event.get("of", "tool")
            text = f"{event.get(of) or of}({_arguments(event.get('arguments'))})"
            if self._announced.get(str(event.get("id"))) == text:
                return None, [], ""
            return ("call" if of == "tool" else of), [text], ""
        if kind == "result":
            words = _content(event.get("content")) or _text(event.get("structured"))
            if event.get("error"):
                words = f"{_text(event['error'])}\n{words}".rstrip("\n")
            took = "" if event.get("seconds") is None else _seconds(event["seconds"])
            return ("error" if event.get("is_error") else "result"), [words or "(empty)"], took
        if kind == "end":
            reward = "" if event.get("reward") is None else f", reward {_reward(event['reward'])}"
            return "end", [f"{event['outcome']}{reward}", *([_text(event["error"])] if event.get("error") else [])], ""
        rest = {name: value for name, value in event.items() if name not in ("seq", "at", "kind", "text")}
        return kind, [*([_text(event["text"])] if event.get("text") else []), *([_text(rest)] if rest else [])], ""

    def _message(self, event: Event) -> tuple[str | None, list[str], str]:
        role = str(event.get("role"))
        if role == "tool" and str(event.get("tool_call_id")) in self._answered:
            return None, [], ""  # its result was shown
        texts = [text for text in (_text(event.get("reasoning_content") or ""), _content(event.get("content"))) if text]
        for call in event.get("tool_calls") or ():
            function = call.get("function") or call
            text = f"{function.get('name')}({_arguments(function.get('arguments'))})"
            self._announced[str(call.get("id"))] = text
            texts.append(f"→ {text}")
        usage = event.get("usage") or {}
        used = [usage.get("input_tokens", usage.get("prompt_tokens")), usage.get("output_tokens")]
        used[1] = usage.get("completion_tokens") if used[1] is None else used[1]
        aside = f"{used[0]}+{used[1]} tokens" if any(used) else ""
        return role, texts or ["(empty)"], aside

    def _block(self, event: Event, label: str, texts: Sequence[str], aside: str) -> Iterator[str]:
        at = max(0.0, event["at"] - (self._began or 0.0))
        color = "red" if label == "error" else _COLORS.get(label, "white")
        name = click.style(f"{label[:9]:<9}", fg=color, bold=True)
        room = self._width - 21
        wrapped = [line for text in texts for line in _wrapped(clean(text), room)]
        if not self._full and len(wrapped) > LINES:
            hidden = len(wrapped) - LINES + 1
            wrapped = [*wrapped[: LINES - 1], click.style(f"... {hidden} more lines (--full)", dim=True)]
        first, *rest = wrapped or [""]
        remark = click.style(f"  {aside}", dim=True) if aside and len(first) + len(aside) + 2 <= room else ""
        yield f"{click.style(f'{at:8.3f}', dim=True)}  {name}  {first}{remark}"
        for line in rest:
            yield f"{'':21}{line}"


def _wrapped(text: str, width: int) -> Iterator[str]:
    for line in text.expandtabs(4).split("\n"):
        yield from textwrap.wrap(line, width, replace_whitespace=False, drop_whitespace=False) or [""]


# --- difference


def difference(found: Difference, names: tuple[str, str], width: int) -> str:
    """Return where two episodes part."""
    lines = [f"{click.style('- ' + names[0], fg='red')}\n{click.style('+ ' + names[1], fg='green')}"]
    if found.begin:
        lines.append("They begin differently:")
        lines += [f"  {clean(name)}: {clean(_text(a))}  |  {clean(_text(b))}" for name, (a, b) in found.begin.items()]
    lines.append(f"{found.same} events are the same (messages, calls, results, states).")
    if found.last_same is not None:
        lines.append("Last common event:")
        lines += [f"  {line}" for line in EventView(width - 2).lines(found.last_same)]
    part = found.parting
    if part is None:
        lines.append("They do not part.")
    elif part.first is None or part.second is None:
        ended, event = (names[0], part.second) if part.first is None else (names[1], part.first)
        assert event is not None
        sign, color = ("+", "green") if part.first is None else ("-", "red")
        lines.append(f"Then {ended} is over, and the other goes on:")
        lines += [click.style(f"{sign} {line}", fg=color) for line in _event_text(event)]
    else:
        fields = f" (in {clean(', '.join(part.fields))})" if part.fields else ""
        lines.append(f"They part at event {part.first['seq']} | {part.second['seq']}{fields}:")
        lines += list(_unified(_event_text(part.first), _event_text(part.second)))
    for name, (a, b) in found.end.items():
        lines.append(f"{name}: {clean(_text(a))}  |  {clean(_text(b))}")
    return "\n".join(lines)


def _event_text(event: Event) -> list[str]:
    view = EventView(10_000, full=True)
    label, texts, _ = view._parts(event)
    lines = [line for text in texts for line in clean(text).split("\n")]
    return [f"{clean(label or event['kind'])}: {lines[0] if lines else ''}", *(f"  {line}" for line in lines[1:])]


def _unified(first: list[str], second: list[str]) -> Iterator[str]:
    for line in difflib.ndiff(first, second):
        if line.startswith("?"):
            continue
        color = {"-": "red", "+": "green"}.get(line[0])
        yield click.style(line, fg=color) if color else line


# --- statistics


def statistics(found: RunStatistics, *, every_task: bool = False) -> str:
    """Return statistics with what they left out."""
    rows: list[tuple[str, str]] = [("episodes", f"{found.episodes:,}, of which {found.counted:,} count")]
    if found.left_out:
        rows.append(("left out", _counts(found.left_out)))
    rows.append(("outcomes", _counts(found.outcomes) or "-"))
    reward = found.reward
    if reward is not None:
        width = "" if reward.low is None else f"  [{reward.low:.3f}, {reward.high:.3f}] at {reward.confidence:.0%}"
        rows.append(("mean reward", f"{reward.mean:.3f}{width}"))
    rows.append(("do nothing", "not known" if found.do_nothing is None else f"{found.do_nothing:.3f}"))
    if found.pass_at:
        rows.append(("pass@k", "  ".join(f"@{k} {rate:.3f}" for k, rate in found.pass_at.items())))
        rows.append(("pass^k", "  ".join(f"^{k} {rate:.3f}" for k, rate in found.pass_all.items())))
    if found.without_signal:
        rows.append(("no signal", f"{found.without_signal} of {len(found.tasks)} tasks: all samples have one reward"))
    used = [f"{found.tokens.get(name, 0):,} {name}" for name in ("input", "output") if found.tokens.get(name)]
    rows.append(
        ("used", ", ".join([_seconds(found.seconds), *used, *([f"{found.cost:.4f} USD"] if found.cost else [])]))
    )
    shown = found.tasks if every_task else found.tasks[:TASKS]
    table = [("TASK", "SAMPLES", "PASSED", "MEAN", "DEVIATION", "ADVANTAGES")]
    for task in shown:
        sides = [f"{value:+.2f}" for value in list(task.advantages.values())[:8]]
        more = " ..." if len(task.scores) > 8 else ""
        table.append(
            (
                clean(textwrap.shorten(task.task, 40)), str(len(task.scores)), str(task.passed), f"{task.mean:.3f}",
                f"{task.deviation:.3f}", " ".join(sides) + more,
            )
        )  # fmt: skip
    text = columns(rows, indent="")
    if shown:
        text += "\n\n" + columns(table, indent="")
    if len(shown) < len(found.tasks):
        text += f"\n... {len(found.tasks) - len(shown)} more tasks (--all-tasks)"
    return text


# --- parts


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items(), key=lambda pair: -pair[1]))


def _content(content: Any) -> str:
    if not isinstance(content, list):
        return _text(content) if content else ""
    return "\n".join(_part(part) for part in content)


def _part(part: Any) -> str:
    if isinstance(part, Mapping):
        if isinstance(part.get("text"), str):
            return str(part["text"])
        kind = str(part.get("type") or "content")
        size = len(str(part.get("data") or part.get("image_url") or ""))
        return f"[{kind} {part.get('mimeType') or ''}, {size:,} characters]".replace(" ,", ",")
    return _text(part)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _arguments(value: Any) -> str:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return str(value)
    if not isinstance(value, Mapping):
        return "" if value is None else _text(value)
    return ", ".join(f"{name}={json.dumps(each, ensure_ascii=False)}" for name, each in value.items())


def _reward(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:g}" if isinstance(value, int | float) else clean(_text(value))


def _steps(count: int | None) -> str:
    return f"{count or 0} step{'' if count == 1 else 's'}"


def _seconds(value: float) -> str:
    if value < 1:
        return f"{value * 1000:.1f} ms"
    return f"{value:.1f} s" if value < 600 else f"{value / 60:.0f} min"


def _tokens(tokens: Mapping[str, int]) -> str:
    return f"{tokens.get('input', 0):,}+{tokens.get('output', 0):,}" if any(tokens.values()) else "-"


def _environment(environment: Mapping[str, Any]) -> str:
    name, version = environment.get("name") or "-", environment.get("version")
    return f"{name}@{version}" if version else str(name)


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def as_lines(events: Iterable[Event], view: EventView) -> Iterator[str]:
    """Yield the lines of all events."""
    for event in events:
        yield from view.lines(event)
