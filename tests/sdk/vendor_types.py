"""Run in a virtual environment with the vendors' packages: check dicts of aenv against the types that they publish.

Reads {api: {"definitions": [...], "messages": [...]}}. Writes, for each API, the calls that aenv reads from an object
of its response type.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import anthropic.types
import google.genai.types as gemini
import openai.types.chat
import openai.types.responses
from pydantic import TypeAdapter

from aenv.sdk.model_formats import FORMATS


def openai_chat() -> Any:
    call = {"id": "c1", "type": "function", "function": {"name": "echo", "arguments": '{"content": '}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    return openai.types.chat.ChatCompletion.model_validate(
        {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    )


def openai_responses() -> Any:
    call = {"type": "function_call", "call_id": "c1", "name": "echo", "arguments": '{"content": '}
    said = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": []}
    return openai.types.responses.Response.model_validate(
        {
            "id": "1", "object": "response", "created_at": 1, "model": "m", "output": [said, call], "tools": [],
            "parallel_tool_calls": True, "tool_choice": "auto",
        }
    )  # fmt: skip


def anthropic_messages() -> Any:
    blocks = [
        {"type": "text", "text": "I will."},
        {"type": "tool_use", "id": "c1", "name": "echo", "input": {"content": "x"}},
    ]
    usage = {"input_tokens": 1, "output_tokens": 1}
    return anthropic.types.Message.model_validate(
        {"id": "1", "type": "message", "role": "assistant", "model": "m", "content": blocks, "usage": usage}
    )


def gemini_content() -> Any:
    parts = [{"text": "I will."}, {"functionCall": {"id": "c1", "name": "echo", "args": {"content": "x"}}}]
    return gemini.GenerateContentResponse.model_validate(
        {"candidates": [{"content": {"role": "model", "parts": parts}}]}
    )


RESPONSES = {
    "openai-chat": openai_chat,
    "openai-responses": openai_responses,
    "anthropic": anthropic_messages,
    "gemini": gemini_content,
}
TYPES: dict[str, tuple[Any, Any]] = {
    "openai-chat": (openai.types.chat.ChatCompletionToolParam, openai.types.chat.ChatCompletionMessageParam),
    "openai-responses": (openai.types.responses.FunctionToolParam, openai.types.responses.ResponseInputItemParam),
    "anthropic": (anthropic.types.ToolParam, anthropic.types.MessageParam),
    "gemini": (gemini.Tool, gemini.Content),
}


def main() -> None:
    calls = {}
    for api, made in json.load(sys.stdin).items():
        tool, message = (TypeAdapter(kind) for kind in TYPES[api])
        for definition in made["definitions"]:
            tool.validate_python(definition)
        for each in made["messages"]:
            message.validate_python(each)
        calls[api] = [[call.name, call.arguments, call.id] for call in FORMATS[api].read_calls(RESPONSES[api]())]
    json.dump(calls, sys.stdout)


if __name__ == "__main__":
    main()
