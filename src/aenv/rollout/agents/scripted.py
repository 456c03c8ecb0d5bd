"""Agents and models that need no key and no network: they follow a script."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from aenv.rollout.episode import Episode
from aenv.rollout.model import Message, ModelRequest, Reply
from aenv.rollout.outcome import AgentLacks

Script = Callable[[Sequence[Message], Sequence[Mapping[str, Any]]], Any]
"""Gets the messages and the tools; returns a text, a message, or a `Reply`."""


async def nop(episode: Episode) -> None:
    """Do nothing: what it scores is the floor for every other agent."""


async def gold(episode: Episode) -> None:
    """Make the tool calls of the task's ``solution``."""
    steps = await episode.solution()
    if not steps:
        raise AgentLacks(f"task {episode.task.id!r} has no solution")
    for step in steps:
        await episode.call_tool(step.tool, step.arguments)


def scripted(steps: Iterable[tuple[str, Mapping[str, Any]]]) -> Callable[[Episode], Any]:
    """Return an agent that makes these calls: pairs of a tool and its arguments."""
    script = [(tool, dict(arguments)) for tool, arguments in steps]

    async def agent(episode: Episode) -> None:
        for tool, arguments in script:
            await episode.call_tool(tool, arguments)

    return agent


def calls(*made: tuple[str, Mapping[str, Any]], text: str | None = None) -> Message:
    """Return a message of the assistant with these tool calls: pairs of a tool and its arguments."""
    return {
        "role": "assistant",
        "content": text,
        "tool_calls": [
            {"id": f"call_{number}", "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}
            for number, (tool, arguments) in enumerate(made)
        ],
    }


class ScriptedModel:
    """A model whose answers a function gives, or a list: one answer for each turn.

    Example:
        ```python
        model = ScriptedModel([calls(("add", {"a": 1, "b": 2})), "The sum is 3."])
        ```
    """

    def __init__(self, script: Script | Sequence[Any], name: str = "scripted") -> None:
        self.name = name
        self._script = script if callable(script) else _turns(script)

    async def complete(self, request: ModelRequest) -> Reply:
        """Return the script's answer. Tokens are counted as words."""
        made = self._script(request.messages, request.tools)
        if inspect.isawaitable(made):
            made = await made
        if isinstance(made, Reply):
            return made
        message: Message = {"role": "assistant", "content": made} if isinstance(made, str) else {**made}
        message.setdefault("role", "assistant")
        read = sum(_words(each) for each in request.messages)
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        return Reply(message, read, _words(message), finish_reason=reason, model=self.name)

    def close(self) -> None:
        return


def _turns(answers: Sequence[Any]) -> Script:
    """Return a script that answers by turn, so that one model serves many episodes at a time."""

    def script(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Any:
        turn = sum(1 for message in messages if message.get("role") == "assistant")
        return answers[turn] if turn < len(answers) else "done"

    return script


def _words(message: Message) -> int:
    text = str(message.get("content") or "")
    calls = message.get("tool_calls") or ()
    return len(text.split()) + sum(len(str(call["function"]["arguments"]).split()) + 1 for call in calls)
