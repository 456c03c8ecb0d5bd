"""An episode as a conversation, which is what most formats store.

The messages that an agent's model saw are the conversation. Calls that no message mentions, as those of a scripted
agent, are put where they happened, so that an episode without a model is a conversation too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aenv.trajectory.events import Event


@dataclass(frozen=True, slots=True)
class ConversationCall:
    """A call that the agent asked for."""

    id: str
    name: str
    arguments: Any
    """A dict, or the text that a model wrote if that is no JSON object."""

    @property
    def as_dict(self) -> dict[str, Any]:
        """Return the arguments as a dict; text that is no JSON object is its only value."""
        return self.arguments if isinstance(self.arguments, dict) else {"text": self.arguments}

    @property
    def as_text(self) -> str:
        """Return the arguments as JSON text."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments, ensure_ascii=False)


@dataclass(slots=True)
class Turn:
    """Message of the conversation."""

    role: str
    """``system``, ``user``, ``assistant`` or ``tool``."""
    content: Any
    """Text, a list of content parts, or None."""
    at: float
    calls: list[ConversationCall] = field(default_factory=list)
    call_id: str | None = None
    """Of a tool's answer: the call that it answers."""
    event: Event = field(default_factory=dict)
    """The recorded message, with usage, token ids and log-probabilities; empty if there was none."""
    result: Event = field(default_factory=dict)
    """Of a tool's answer: the recorded result, if there is one."""
    copied: bool = False
    """True if it repeats an earlier turn, because the agent changed what its model sees."""

    @property
    def text(self) -> str:
        """Return the text of the content."""
        return text_of(self.content)


@dataclass(slots=True)
class Conversation:
    """The turns of an episode, with its beginning and its end."""

    begin: Event
    end: Event
    turns: list[Turn]
    other_calls: list[dict[str, Any]]
    """Calls of functions and rewards, with their results."""


def conversation(events: Iterable[Event], *, whole: bool = False) -> Conversation:
    """Return the conversation of an episode.

    Args:
        events: The events.
        whole: Keep turns that the agent removed from what its model sees. Without it, the conversation is the last
            that the model saw.
    """
    known = list(events)
    begin = known[0] if known and known[0]["kind"] == "begin" else {}
    end = known[-1] if known and known[-1]["kind"] == "end" else {}
    reading = _Reading(known, whole)
    for event in known:
        reading.take(event)
    instruction = (begin.get("task") or {}).get("instruction")
    if instruction and not any(turn.role == "user" for turn in reading.turns):
        first = next((n for n, turn in enumerate(reading.turns) if turn.role != "system"), len(reading.turns))
        reading.turns.insert(first, Turn("user", instruction, begin.get("at", 0.0)))
    return Conversation(begin, end, reading.turns, reading.other_calls)


class _Reading:
    def __init__(self, events: Sequence[Event], whole: bool) -> None:
        self.turns: list[Turn] = []
        self.other_calls: list[dict[str, Any]] = []
        self._whole = whole
        self._messages: list[Turn] = []
        self._changed = False
        self._called: set[str] = set()
        """Ids of calls in the turns that no message asked for."""
        messages = [event for event in events if event["kind"] == "message"]
        self._asked = {str(call.get("id")) for event in messages for call in event.get("tool_calls") or ()}
        self._answered = {str(event["tool_call_id"]) for event in messages if event.get("tool_call_id")}
        self._results = {str(event["id"]): event for event in events if event["kind"] == "result"}

    def take(self, event: Event) -> None:
        kind = event["kind"]
        if kind == "message":
            self._message(event)
        elif kind == "call":
            self._call(event)
        elif kind == "result":
            self._result(event)
        elif kind == "note":
            kept = (event.get("data") or {}).get("context_kept") if isinstance(event.get("data"), Mapping) else None
            if isinstance(kept, int):
                self._change(kept)

    def _message(self, event: Event) -> None:
        calls = [_tool_call(call) for call in event.get("tool_calls") or ()]
        call_id = event.get("tool_call_id")
        result = self._results.get(str(call_id), {}) if call_id else {}
        turn = Turn(event["role"], event.get("content"), event["at"], calls, call_id, event, result)
        turn.copied = self._changed and any(_same(turn, other) for other in self.turns)
        self.turns.append(turn)
        self._messages.append(turn)

    def _call(self, event: Event) -> None:
        if event.get("of", "tool") != "tool":
            result = self._results.get(str(event["id"]), {})
            self.other_calls.append({
                "of": event["of"], "name": event.get(event["of"]), "arguments": event.get("arguments"),
                "result": result.get("structured"), "error": result.get("error"),
            })  # fmt: skip
        elif str(event["id"]) not in self._asked:
            call = ConversationCall(str(event["id"]), str(event.get("tool")), event.get("arguments") or {})
            self._called.add(call.id)
            last = self.turns[-1] if self.turns else None
            if last is not None and last.role == "assistant" and not last.event and not last.content:
                last.calls.append(call)
            else:
                self.turns.append(Turn("assistant", None, event["at"], [call]))

    def _result(self, event: Event) -> None:
        id = str(event["id"])
        if (id in self._asked or id in self._called) and id not in self._answered:
            content = event.get("content") or event.get("error") or event.get("structured") or ""
            self.turns.append(Turn("tool", content, event["at"], call_id=id, result=event))

    def _change(self, kept: int) -> None:
        self._changed = True
        if not self._whole:
            last = self._messages[kept - 1] if 0 < kept <= len(self._messages) else None
            self.turns = self.turns[: self.turns.index(last) + 1] if last is not None else []
            self._messages = self._messages[:kept]
            self._called = {call.id for turn in self.turns for call in turn.calls}


def text_of(content: Any) -> str:
    """Return the text of content: of its text parts, or of what it is as JSON."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_part_text(part) for part in content)
    return json.dumps(content, ensure_ascii=False)


def numbers(values: Any) -> list[float] | None:
    """Return log-probabilities as numbers; None if they have another form."""
    if isinstance(values, Mapping):
        values = values.get("content")
    if not isinstance(values, list) or not values:
        return None
    found = [each.get("logprob") if isinstance(each, Mapping) else each for each in values]
    known = [float(each) for each in found if isinstance(each, int | float)]
    return known if len(known) == len(found) else None


def tokens_of(event: Event) -> tuple[int | None, int | None]:
    """Return the tokens that a message's request had and its answer took."""
    usage = event.get("usage") or {}
    return (
        usage.get("input_tokens", usage.get("prompt_tokens")),
        usage.get("output_tokens", usage.get("completion_tokens")),
    )


def openai_messages(turns: Iterable[Turn]) -> Iterator[dict[str, Any]]:
    """Yield turns as messages of OpenAI's Chat Completions. MCP content becomes text."""
    for turn in turns:
        message: dict[str, Any] = {"role": turn.role, "content": _openai_content(turn)}
        if turn.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.as_text}}
                for call in turn.calls
            ]
        if turn.role == "tool":
            message["tool_call_id"] = turn.call_id or ""
        yield message


def _openai_content(turn: Turn) -> Any:
    if turn.content is None:
        return None if turn.calls else ""
    is_parts = isinstance(turn.content, list) and turn.role != "tool"
    return turn.content if isinstance(turn.content, str) or is_parts else turn.text


def _tool_call(call: Mapping[str, Any]) -> ConversationCall:
    function = call.get("function") or call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments or "{}")
        except ValueError:
            parsed = None
        arguments = parsed if isinstance(parsed, dict) else arguments
    return ConversationCall(
        str(call.get("id") or ""), str(function.get("name") or ""), {} if arguments is None else arguments
    )


def _same(one: Turn, other: Turn) -> bool:
    return (one.role, one.content, one.calls, one.call_id) == (other.role, other.content, other.calls, other.call_id)


def _part_text(part: Any) -> str:
    if isinstance(part, Mapping):
        if isinstance(part.get("text"), str):
            return str(part["text"])
        return f"[{part.get('type') or 'content'}]"
    return str(part)
