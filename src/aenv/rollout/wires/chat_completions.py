"""OpenAI Chat Completions, and the many servers that copy it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aenv.rollout.model import Message, ModelRequest, Reply
from aenv.rollout.wires.base import InvalidAnswer, Json, Wire, objects

_OWN = ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content", "refusal")
"""Fields of a message that are sent. Others are for records, or for other APIs."""


class Chat(Wire):
    """``/chat/completions``."""

    path = "/chat/completions"

    def headers(self, key: str | None) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"} if key else {}

    def body(self, model: str, request: ModelRequest, *, stream: bool) -> Json:
        messages = [{name: message[name] for name in _OWN if name in message} for message in request.messages]
        body: Json = {"model": model, "messages": messages, **request.sampling}
        if request.tools:
            body["tools"] = list(request.tools)
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    def reply(self, answer: Json) -> Reply:
        choice = answer["choices"][0]
        message: Message = {name: value for name, value in choice["message"].items() if value is not None}
        message["role"] = "assistant"
        message.setdefault("content", None)
        for number, call in enumerate(message.get("tool_calls") or ()):
            call["id"] = call.get("id") or f"call_{number}"
            call["function"] = {"name": call["function"]["name"], "arguments": call["function"].get("arguments") or ""}
        usage = answer.get("usage") or {}
        shown = (choice.get("logprobs") or {}).get("content")
        return Reply(
            message,
            int(usage.get("prompt_tokens") or 0),
            int(usage.get("completion_tokens") or 0),
            float(usage.get("cost") or 0.0),
            choice.get("finish_reason"),
            answer.get("model"),
            answer.get("prompt_token_ids") or choice.get("prompt_token_ids"),
            choice.get("token_ids"),
            [token["logprob"] for token in shown] if shown else None,
        )

    def messages(self, request: Json) -> list[Message]:
        return [{"role": "user", "content": None, **each} for each in objects(request.get("messages"))]

    def assembled(self, events: Iterable[Json], *, cut_off: bool = False) -> Json:
        answer: Json = {}
        message: Json = {"content": None}
        choice: Json = {"message": message, "finish_reason": None}
        calls: dict[int, Json] = {}
        for event in events:
            if "error" in event:
                raise InvalidAnswer(f"the stream reports an error: {event['error']}")
            for name in ("model", "usage", "prompt_token_ids"):
                if event.get(name):
                    answer[name] = event[name]
            for part in event.get("choices") or ():
                _add_delta(message, calls, part.get("delta") or {})
                _extend(choice, part)
        if choice["finish_reason"] is None and not cut_off:
            raise InvalidAnswer("the stream was cut off")
        if calls:
            message["tool_calls"] = [calls[index] for index in sorted(calls)]
        return {**answer, "choices": [choice]}


def _add_delta(message: Json, calls: dict[int, Json], delta: Json) -> None:
    for name in ("content", "reasoning_content", "refusal"):
        if delta.get(name):
            message[name] = (message.get(name) or "") + delta[name]
    for part in delta.get("tool_calls") or ():
        call = calls.setdefault(
            part.get("index", len(calls)), {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
        )
        call["id"] = part.get("id") or call["id"]
        function = part.get("function") or {}
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""


def _extend(choice: Json, part: Json) -> None:
    choice["finish_reason"] = part.get("finish_reason") or choice["finish_reason"]
    choice["prompt_token_ids"] = part.get("prompt_token_ids") or choice.get("prompt_token_ids")
    if part.get("token_ids"):
        choice["token_ids"] = [*(choice.get("token_ids") or ()), *part["token_ids"]]
    shown: Any = (part.get("logprobs") or {}).get("content")
    if shown:
        choice["logprobs"] = {"content": [*(choice.get("logprobs") or {"content": ()})["content"], *shown]}
