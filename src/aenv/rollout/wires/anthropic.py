"""Anthropic Messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from aenv.rollout.model import Message, ModelRequest, Reply
from aenv.rollout.wires.base import InvalidAnswer, Json, Wire, data_url, objects, text_of

MAX_TOKENS = 8192
"""The API requires a limit; this one applies where the rollout sets none."""
VERSION = "2023-06-01"
BLOCKS = "content_blocks"
"""Field of a message with the blocks as the server sent them, which it wants back, thinking included."""
_FINISH = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls", "max_tokens": "length"}


class Anthropic(Wire):
    """``/v1/messages``."""

    path = "/v1/messages"

    def headers(self, key: str | None) -> dict[str, str]:
        return {"anthropic-version": VERSION, **({"x-api-key": key} if key else {})}

    def body(self, model: str, request: ModelRequest, *, stream: bool) -> Json:
        sampling = {"max_tokens": MAX_TOKENS, **request.sampling}
        if "stop" in sampling:
            stop = sampling.pop("stop")
            sampling["stop_sequences"] = [stop] if isinstance(stop, str) else stop
        sampling.pop("seed", None)
        body: Json = {"model": model, "messages": _turns(request.messages), **sampling}
        system = "\n\n".join(text_of(each["content"]) for each in request.messages if each["role"] == "system")
        if system:
            body["system"] = system
        if request.tools:
            body["tools"] = [
                {
                    "name": tool["function"]["name"],
                    "description": tool["function"].get("description") or "",
                    "input_schema": tool["function"]["parameters"],
                }
                for tool in request.tools
            ]
        return {**body, "stream": True} if stream else body

    def reply(self, answer: Json) -> Reply:
        texts, calls = [], []
        for block in answer["content"]:
            if block["type"] == "text":
                texts.append(block["text"])
            elif block["type"] == "tool_use":
                function = {"name": block["name"], "arguments": json.dumps(block["input"], ensure_ascii=False)}
                calls.append({"id": block["id"], "type": "function", "function": function})
        message: Message = {"role": "assistant", "content": "".join(texts) or None, BLOCKS: answer["content"]}
        if calls:
            message["tool_calls"] = calls
        usage = answer.get("usage") or {}
        cached = (usage.get("cache_read_input_tokens") or 0) + (usage.get("cache_creation_input_tokens") or 0)
        reason = answer.get("stop_reason")
        return Reply(
            message,
            int(usage.get("input_tokens") or 0) + int(cached),
            int(usage.get("output_tokens") or 0),
            finish_reason=_FINISH.get(reason, reason) if reason else None,
            model=answer.get("model"),
        )

    def messages(self, request: Json) -> list[Message]:
        found: list[Message] = [{"role": "system", "content": request["system"]}] if request.get("system") else []
        for message in objects(request.get("messages")):
            found += _read_turn(str(message.get("role", "user")), message.get("content"))
        return found

    def assembled(self, events: Iterable[Json], *, cut_off: bool = False) -> Json:
        answer: Json = {}
        blocks: dict[int, Json] = {}
        inputs: dict[int, str] = {}
        ended = False
        for event in events:
            kind = event.get("type")
            if kind == "error":
                raise InvalidAnswer(f"the stream reports an error: {event.get('error')}")
            if kind == "message_start":
                answer = dict(event["message"])
            elif kind == "content_block_start":
                blocks[event["index"]] = dict(event["content_block"])
            elif kind == "content_block_delta":
                _add_delta(blocks[event["index"]], inputs, event["index"], event["delta"])
            elif kind == "message_delta":
                answer |= {name: value for name, value in event["delta"].items() if value is not None}
                answer["usage"] = {**(answer.get("usage") or {}), **(event.get("usage") or {})}
            elif kind == "message_stop":
                ended = True
        if not ended and not cut_off:
            raise InvalidAnswer("the stream was cut off")
        for index, text in inputs.items():
            blocks[index]["input"] = _parsed(text, cut_off)
        return {**answer, "content": [blocks[index] for index in sorted(blocks)]}


def _parsed(text: str, cut_off: bool) -> Any:
    try:
        return json.loads(text) if text.strip() else {}
    except ValueError:
        if cut_off:
            return text
        raise


def _add_delta(block: Json, inputs: dict[int, str], index: int, delta: Json) -> None:
    for kind, name in (("text_delta", "text"), ("thinking_delta", "thinking"), ("signature_delta", "signature")):
        if delta["type"] == kind:
            block[name] = (block.get(name) or "") + delta[name]
    if delta["type"] == "input_json_delta":
        inputs[index] = inputs.get(index, "") + delta["partial_json"]


def _turns(messages: Sequence[Message]) -> list[Json]:
    """Return the conversation with alternating roles: results of tools, and what the user says, are one turn."""
    turns: list[Json] = []
    for message in messages:
        if message["role"] == "system":
            continue
        role = "assistant" if message["role"] == "assistant" else "user"
        blocks = _assistant(message) if role == "assistant" else _user(message)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    return turns


def _read_turn(role: str, content: Any) -> list[Message]:
    """Return a turn as messages: results of tools are messages of their own."""
    if not isinstance(content, list):
        return [{"role": role, "content": content}]
    found: list[Message] = []
    calls, rest = [], []
    for block in objects(content):
        if block.get("type") == "tool_result":
            failed = {"is_error": True} if block.get("is_error") else {}
            result = {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": block.get("content")}
            found.append(result | failed)
        elif block.get("type") == "tool_use":
            given = json.dumps(block.get("input"), ensure_ascii=False)
            function = {"name": block.get("name"), "arguments": given}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        else:
            rest.append(block)
    if calls or rest:
        plain = all(set(block) <= {"type", "text"} for block in rest)
        message: Message = {"role": role, "content": (text_of(rest) if plain else rest) or None}
        found.append(message | ({"tool_calls": calls} if calls else {}))
    return found


def _assistant(message: Message) -> list[Json]:
    if BLOCKS in message:
        return list(message[BLOCKS])
    blocks: list[Json] = [{"type": "text", "text": text_of(message["content"])}] if message.get("content") else []
    for call in message.get("tool_calls") or ():
        try:
            given = json.loads(call["function"]["arguments"] or "{}")
        except ValueError:
            given = {"invalid": call["function"]["arguments"]}
        blocks.append({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": given})
    return blocks


def _user(message: Message) -> list[Json]:
    content: Any = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    blocks = [_block(part) for part in parts if part.get("type") != "text" or part.get("text")]
    if message["role"] == "tool":
        return [{"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": blocks}]
    return blocks


def _block(part: Json) -> Json:
    if part["type"] != "image_url":
        return {"type": "text", "text": part.get("text", "")}
    media, data = data_url(part)
    return {"type": "image", "source": {"type": "base64", "media_type": media, "data": data}}
