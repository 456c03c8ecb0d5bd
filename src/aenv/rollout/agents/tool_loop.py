"""The tool-calling loop: ask the model, run the tools that it calls, until it calls none."""

from __future__ import annotations

import asyncio
from typing import Any

from aenv.authoring.results import ToolResult
from aenv.rollout.episode import Episode
from aenv.rollout.model import Message, ToolCall
from aenv.sdk.model_formats import ModelCall, OpenAIChat

_CHAT = OpenAIChat()
CUT = "[removed, to keep the conversation within the model's context]"


class ToolLoop:
    """An agent that lets a model call the tools until it answers without a call.

    If the episode has a user, such an answer is said to the user, and the loop ends when the user leaves.

    Args:
        system: System prompt.
        parallel: Run the calls of one answer at the same time. By default they run in order, because most environments
            have one state.
        context_tokens: Length of the model's context. When a request came near it, the results of the oldest calls are
            removed from the next ones. Without it, a conversation that the model's server refuses ends the episode.
        keep_results: Number of newest tool results that are never removed.
    """

    def __init__(
        self, system: str = "", *, parallel: bool = False, context_tokens: int | None = None, keep_results: int = 4
    ) -> None:
        self._system = system
        self._parallel = parallel
        self._context_tokens = context_tokens
        self._keep_results = keep_results

    async def __call__(self, episode: Episode) -> None:
        messages = await self._beginning(episode)
        while messages:
            reply = await episode.ask(messages)
            messages.append(reply.message)
            if not reply.tool_calls:
                said = await episode.user.say(reply.text) if episode.user is not None else None
                if said is None:
                    return
                messages.append({"role": "user", "content": said})
                continue
            results = await self._run(episode, reply.tool_calls)
            answered = [
                (ModelCall(call.name, call.arguments, call.id), result)
                for call, result in zip(reply.tool_calls, results, strict=True)
            ]
            messages += _CHAT.messages(answered)
            limit = self._context_tokens
            if limit is not None and reply.input_tokens + reply.output_tokens > 0.8 * limit:
                self._cut(messages)

    async def _beginning(self, episode: Episode) -> list[Message]:
        """Return the first messages: the task; or the agent's role and the user's opening; none if the user leaves."""
        system, first = self._system, episode.instruction
        if episode.user is not None:
            opening = await episode.user.opening()
            if opening is None:
                return []
            system, first = "\n\n".join(part for part in (system, first) if part), opening
        beginning: list[Message] = [{"role": "system", "content": system}] if system else []
        return [*beginning, {"role": "user", "content": first}]

    async def _run(self, episode: Episode, calls: list[ToolCall]) -> list[ToolResult]:
        if not self._parallel or len(calls) == 1:
            return [await episode.call_tool(call.name, call.arguments, id=call.id) for call in calls]
        tasks = [asyncio.ensure_future(episode.call_tool(call.name, call.arguments, id=call.id)) for call in calls]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _cut(self, messages: list[Message]) -> None:
        """Remove the oldest half of the tool results, except the newest ones."""
        found = [number for number, message in enumerate(messages) if _is_long_result(message)]
        old = found[: max(0, len(found) - self._keep_results)]
        for number in old[: (len(old) + 1) // 2]:
            messages[number] = {**messages[number], "content": CUT}


def _is_long_result(message: Message) -> bool:
    content: Any = message.get("content")
    return message.get("role") == "tool" and isinstance(content, str) and len(content) > len(CUT)


tool_loop = ToolLoop()
"""The loop with its defaults."""
