"""Episodes as one HTML page to send to somebody: all of it in one file, without scripts and without a network.

Two episodes are shown side by side, with the step at which they part. What agents and environments wrote is escaped,
and the page's own policy allows no script, so nothing of it runs.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from aenv.errors import UsageError
from aenv.trajectory.difference import Difference, compare
from aenv.trajectory.events import EpisodeSummary, Event

MAX_EPISODES = 50
MAX_EVENTS = 20_000
"""Events of an episode in a page; browsers get slow beyond."""
MAX_TEXT = 100_000
"""Characters of one text."""
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]*")
_ESCAPES = re.compile(r"\x1b\[[0-9;:?]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_STYLE = """
:root{color-scheme:light dark;font:15px/1.45 system-ui,sans-serif}body{max-width:70em;margin:0 auto;padding:1em}
body.two{max-width:none;display:grid;grid-template-columns:1fr 1fr;gap:1.5em}header{grid-column:1/-1}
section{min-width:0}pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.3em 0;max-height:40em;overflow:auto;
font-size:.88em;background:#8881;padding:.5em;border-radius:5px}dl{display:flex;flex-wrap:wrap;gap:.4em 1.5em}
dt{font-size:.8em;opacity:.7}dd{margin:0}article{border-top:1px solid #8884;padding:.4em 0}
article.error{border-left:3px solid #c33;padding-left:.6em}article.apart{border-top:3px solid #45c}
b{font-size:.85em;margin-right:.6em}small{opacity:.7}img{max-width:100%}
@media(max-width:50em){body.two{display:block}}
"""


def write_page(path: Path, episodes: Iterable[tuple[EpisodeSummary, Iterable[Event]]]) -> int:
    """Write episodes to a page and return how many there are.

    Raises:
        UsageError: there are too many of them.
    """
    found = [(summary, list(islice(events, MAX_EVENTS + 1))) for summary, events in islice(episodes, MAX_EPISODES + 1)]
    if len(found) > MAX_EPISODES:
        hint = {"hint": "Choose some with --episode, --task or --outcome."}
        raise UsageError(f"a page holds at most {MAX_EPISODES} episodes", hint)
    apart = compare(found[0][1], found[1][1]) if len(found) == 2 else None
    with path.open("w", encoding="utf-8") as file:
        _write(file, found, apart)
    return len(found)


def _write(file: TextIO, found: list[tuple[EpisodeSummary, list[Event]]], apart: Difference | None) -> None:
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    title = " and ".join(dict.fromkeys(summary.task for summary, _ in found[:2])) or "no episodes"
    file.write(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f'content="{html.escape(policy)}"><meta name="viewport" content="width=device-width">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style><body{' class=two' if apart else ''}>"
    )
    if apart is not None:
        said = "Both did the same." if apart.equal else f"The first {apart.same} steps are the same."
        file.write(f"<header><h1>{_text(title)}</h1><p>{said}</p></header>")
    for number, (summary, events) in enumerate(found):
        part = apart.parting if apart is not None else None
        marked = (part.first, part.second)[number] if part is not None else None
        file.write(f"<section>{_head(summary)}")
        for event in events[:MAX_EVENTS]:
            file.write(_article(event, summary.began, marked is event))
        if len(events) > MAX_EVENTS:
            file.write(f"<p>Only the first {MAX_EVENTS:,} events are shown.</p>")
        file.write("</section>")
    file.write("</body></html>\n")


def _head(summary: EpisodeSummary) -> str:
    reward = "none" if summary.reward is None else json.dumps(summary.reward)
    env = "@".join(str(summary.environment[name]) for name in ("name", "version") if summary.environment.get(name))
    facts = {
        "outcome": summary.outcome or summary.state, "reward": reward, "sample": summary.sample, "environment": env,
        "agent": summary.agent.get("name"), "model": summary.model, "events": summary.events,
        "began": f"{datetime.fromtimestamp(summary.began, UTC):%Y-%m-%d %H:%M:%S} UTC", "run": summary.run,
        "id": summary.id, "failure": summary.failure_reason,
    }  # fmt: skip
    shown = "".join(
        f"<div><dt>{name}</dt><dd>{_text(value)}</dd></div>" for name, value in facts.items() if value not in (None, "")
    )
    return f"<h2>{_text(summary.task)}</h2><dl>{shown}</dl>"


def _article(event: Event, began: float, apart: bool) -> str:
    kinds = [name for name, is_so in (("error", _is_error(event)), ("apart", apart)) if is_so]
    name = event.get("role") if event["kind"] == "message" else event["kind"]
    after = max(0.0, float(event.get("at") or began) - began)
    head = f"<b>{_text(name)}</b><small>{after:.3f} s</small>"
    return f'<article class="{" ".join(kinds)}">{head}{"".join(_blocks(event))}</article>'


def _blocks(event: Event) -> Iterable[str]:
    if event["kind"] == "call":
        yield _pre(f"{event.get(str(event.get('of')), '')}({json.dumps(event.get('arguments'), ensure_ascii=False)})")
        return
    content = event.get("content")
    for each in content if isinstance(content, list) else [content]:
        if each not in (None, ""):
            yield _content(each)
    calls = event.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        made = call.get("function", call) if isinstance(call, Mapping) else None
        if isinstance(made, Mapping):
            yield _pre(f"→ {made.get('name')}({made.get('arguments')})")
    rest = {name: event[name] for name in _MORE if event.get(name) not in (None, "", [], {})}
    if rest:
        yield _pre(json.dumps(rest, indent=1, ensure_ascii=False))


_MORE = ("structured", "fault", "error", "text", "data", "outcome", "reward", "failure_reason", "digest")


def _content(each: Any) -> str:
    if isinstance(each, Mapping):
        data, kind = each.get("data"), each.get("mimeType")
        if kind in _IMAGES and isinstance(data, str) and _BASE64.fullmatch(data):
            return f'<img alt="image of the result" src="data:{kind};base64,{"".join(data.split())}">'
        each = each["text"] if isinstance(each.get("text"), str) else json.dumps(each, ensure_ascii=False)
    return _pre(str(each))


def _is_error(event: Event) -> bool:
    return bool(event.get("is_error") or event.get("fault") or event.get("outcome", "ok") != "ok")


def _pre(text: str) -> str:
    more = f"\n... {len(text) - MAX_TEXT:,} more characters" if len(text) > MAX_TEXT else ""
    return f"<pre>{_text(text[:MAX_TEXT] + more)}</pre>"


def _text(value: Any) -> str:
    """Return text for HTML, without terminal escapes and characters that hide or reorder other text."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    plain = _ESCAPES.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return html.escape(_CONTROLS.sub("\N{REPLACEMENT CHARACTER}", plain))
