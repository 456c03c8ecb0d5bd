"""Formats of model APIs: how each one lists tools, calls them, and takes their results.

Plain dicts only, so that no package of a model's vendor is needed. Each API accepts them in place of its own types.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from aenv.authoring.content import text_of
from aenv.authoring.results import ToolResult
from aenv.errors import InvalidUse

Json = dict[str, Any]

NAME_LENGTH = 64
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A tool call that a model has made."""

    name: str
    arguments: Any
    """Arguments as the API returned them: JSON text, which may be malformed, or a dict."""
    id: str | None = None


class ModelFormat(ABC):
    """The format of one model API."""

    @abstractmethod
    def definitions(self, tools: Sequence[Json]) -> list[Json]:
        """Return the value of the request's ``tools``."""

    @abstractmethod
    def read_calls(self, response: Any) -> list[ModelCall]:
        """Return the calls in a response, in a message of it, or in a part of that message."""

    @abstractmethod
    def messages(self, answered: Sequence[tuple[ModelCall, ToolResult]]) -> list[Json]:
        """Return the messages that answer the calls of one turn."""


class OpenAIChat(ModelFormat):
    """OpenAI Chat Completions, and the many servers that copy it."""

    def definitions(self, tools: Sequence[Json]) -> list[Json]:
        return [{"type": "function", "function": _described(tool, "parameters")} for tool in tools]

    def read_calls(self, response: Any) -> list[ModelCall]:
        found = as_dict(response)
        if "choices" in found:
            found = as_dict(as_dict(found["choices"][0])["message"])
        if "function" not in found and ("role" in found or "tool_calls" in found):
            return [self._call(as_dict(each)) for each in found.get("tool_calls") or ()]
        return [self._call(found)]

    def _call(self, call: Json) -> ModelCall:
        function = as_dict(_field(call, "function"))
        return ModelCall(_field(function, "name"), function.get("arguments"), call.get("id"))

    def messages(self, answered: Sequence[tuple[ModelCall, ToolResult]]) -> list[Json]:
        """Return a message per call. Tool messages hold text only, so images follow in a message of the user."""
        made: list[Json] = []
        images: list[Json] = []
        for call, result in answered:
            shown, text = _images(result), _text(result)
            made.append({"role": "tool", "tool_call_id": call.id, "content": text})
            if shown:
                images.append({"type": "text", "text": f"Images from the tool {call.name}:"})
                images += [{"type": "image_url", "image_url": {"url": _data_url(block)}} for block in shown]
        return [*made, {"role": "user", "content": images}] if images else made


class OpenAIResponses(ModelFormat):
    """OpenAI Responses."""

    def definitions(self, tools: Sequence[Json]) -> list[Json]:
        # Strict mode rejects free-form objects, which tools may take.
        return [{"type": "function", **_described(tool, "parameters"), "strict": False} for tool in tools]

    def read_calls(self, response: Any) -> list[ModelCall]:
        found = as_dict(response)
        items = [as_dict(item) for item in found["output"]] if "output" in found and "call_id" not in found else [found]
        calls = [item for item in items if item.get("type") == "function_call"]
        return [ModelCall(_field(call, "name"), call.get("arguments"), call.get("call_id")) for call in calls]

    def messages(self, answered: Sequence[tuple[ModelCall, ToolResult]]) -> list[Json]:
        return [
            {"type": "function_call_output", "call_id": call.id, "output": self._output(result)}
            for call, result in answered
        ]

    def _output(self, result: ToolResult) -> str | list[Json]:
        images = _images(result)
        if not images:
            return _text(result)
        shown = [{"type": "input_image", "image_url": _data_url(block), "detail": "auto"} for block in images]
        text = _text(result)
        return [{"type": "input_text", "text": text}, *shown] if text else shown


class AnthropicMessages(ModelFormat):
    """Anthropic Messages."""

    def definitions(self, tools: Sequence[Json]) -> list[Json]:
        return [_described(tool, "input_schema") for tool in tools]

    def read_calls(self, response: Any) -> list[ModelCall]:
        found = as_dict(response)
        blocks = found["content"] if "content" in found and found.get("type") != "tool_use" else [found]
        calls = [as_dict(block) for block in blocks if not isinstance(block, str)]
        calls = [block for block in calls if block.get("type") == "tool_use"]
        return [ModelCall(_field(call, "name"), call.get("input"), call.get("id")) for call in calls]

    def messages(self, answered: Sequence[tuple[ModelCall, ToolResult]]) -> list[Json]:
        """Return one message: the API wants the results of a turn together."""
        blocks = [self._block(call, result) for call, result in answered]
        return [{"role": "user", "content": blocks}] if blocks else []

    def _block(self, call: ModelCall, result: ToolResult) -> Json:
        text = _text(result)
        content: list[Json] = [{"type": "text", "text": text}] if text else []  # an empty text block is refused
        content += [
            {"type": "image", "source": {"type": "base64", "media_type": block["mimeType"], "data": block["data"]}}
            for block in _images(result)
        ]
        return {"type": "tool_result", "tool_use_id": call.id, "content": content, "is_error": result.is_error}


class Gemini(ModelFormat):
    """Gemini ``generateContent``."""

    def definitions(self, tools: Sequence[Json]) -> list[Json]:
        declared = [_described(tool, "parametersJsonSchema") for tool in tools]
        return [{"functionDeclarations": declared}] if declared else []

    def read_calls(self, response: Any) -> list[ModelCall]:
        found = as_dict(response)
        if "candidates" in found:
            candidates = found["candidates"] or [{}]
            found = as_dict(as_dict(candidates[0]).get("content") or {"parts": None})
        parts = [as_dict(part) for part in found["parts"] or ()] if "parts" in found else [found]
        calls = []
        for part in parts:
            call = part.get("functionCall") or part.get("function_call")
            if call is None and "name" in part and "args" in part:
                call = part
            if call is not None:
                call = as_dict(call)
                calls.append(ModelCall(_field(call, "name"), call.get("args"), call.get("id")))
        return calls

    def messages(self, answered: Sequence[tuple[ModelCall, ToolResult]]) -> list[Json]:
        """Return one message: the API wants as many responses as there were calls, together."""
        parts = [{"functionResponse": self._response(call, result)} for call, result in answered]
        return [{"role": "user", "parts": parts}] if parts else []

    def _response(self, call: ModelCall, result: ToolResult) -> Json:
        answer: Json = {"name": call.name, "response": {"error" if result.is_error else "output": _text(result)}}
        if call.id is not None:
            answer["id"] = call.id
        images = _images(result)
        if images:
            answer["parts"] = [
                {"inlineData": {"mimeType": block["mimeType"], "data": block["data"]}} for block in images
            ]
        return answer


FORMATS: dict[str, ModelFormat] = {
    "openai-chat": OpenAIChat(),
    "openai-responses": OpenAIResponses(),
    "anthropic": AnthropicMessages(),
    "gemini": Gemini(),
}


def model_format(name: str) -> ModelFormat:
    """Return a format by name. Raises InvalidUse."""
    if name not in FORMATS:
        raise InvalidUse(f"unknown model API {name!r}; expected one of {', '.join(FORMATS)}")
    return FORMATS[name]


def accepted_names(names: Sequence[str]) -> list[str]:
    """Return a unique name for each tool that all model APIs accept.

    That is at most 64 ASCII letters, digits, ``_`` and ``-``, the first one a letter or ``_``.
    """
    return unique_names([f"_{name}" if name[:1].isdigit() or name[:1] == "-" else name for name in names])


def unique_names(names: Sequence[str]) -> list[str]:
    """Return unique names of at most 64 ASCII letters, digits, ``_`` and ``-``."""
    made: list[str] = []
    taken: set[str] = set()
    for name in names:
        base = _FORBIDDEN.sub("_", name)[:NAME_LENGTH] or "tool"
        unique, number = base, 2
        while unique in taken:
            suffix = f"_{number}"
            unique, number = base[: NAME_LENGTH - len(suffix)] + suffix, number + 1
        taken.add(unique)
        made.append(unique)
    return made


def as_dict(value: Any) -> Json:
    """Return an object of a vendor's package, or a dict, as a dict."""
    if isinstance(value, Mapping):
        return dict(value)
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise InvalidUse(f"expected a model's response, a message or a tool call, not {type(value).__name__}")
    dumped: Json = dump(exclude_none=True)
    return dumped


def _field(call: Json, name: str) -> Any:
    if name not in call:
        raise InvalidUse(f"this is not a tool call of this API: it has no {name!r}")
    return call[name]


def _described(tool: Json, schema: str) -> Json:
    return {"name": tool["name"], "description": tool.get("description") or "", schema: tool["inputSchema"]}


def _images(result: ToolResult) -> list[Json]:
    """Return the image blocks. An error is text alone, which all APIs take."""
    return [] if result.is_error else [block for block in result.content if block.get("type") == "image"]


def _text(result: ToolResult) -> str:
    """Return what the model reads: text as it is, and other blocks than images as JSON."""
    if result.is_error:
        return text_of(result.content) or "the tool failed without a message"
    parts = [
        str(block["text"]) if block.get("type") == "text" else to_json(block).decode()
        for block in result.content
        if block.get("type") != "image"
    ]
    return "\n".join(parts)


def _data_url(block: Json) -> str:
    return f"data:{block['mimeType']};base64,{block['data']}"
