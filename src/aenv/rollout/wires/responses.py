"""OpenAI Responses, used without state on the server: every request carries the whole conversation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from aenv.rollout.model import Message, ModelRequest, Reply
from aenv.rollout.wires.base import InvalidAnswer, Json, Wire, objects, text_of

ITEMS = "response_items"
"""Field of a message with the items as the server sent them, which it wants back, reasoning included."""


class Responses(Wire):
    """``/responses``."""

    path = "/responses"

    def headers(self, key: str | None) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"} if key else {}

    def body(self, model: str, request: ModelRequest, *, stream: bool) -> Json:
        sampling = dict(request.sampling)
        if "max_tokens" in sampling:
            sampling["max_output_tokens"] = sampling.pop("max_tokens")
        system = "\n\n".join(text_of(each["content"]) for each in request.messages if each["role"] == "system")
        items = [item for message in request.messages for item in _items(message)]
        body: Json = {"model": model, "input": items, "store": False, **sampling}
        if system:
            body["instructions"] = system
        if request.tools:
            body["tools"] = [{"type": "function", **tool["function"], "strict": False} for tool in request.tools]
        return {**body, "stream": True} if stream else body

    def reply(self, answer: Json) -> Reply:
        if answer.get("status") == "failed":
            raise InvalidAnswer(f"the model failed: {answer.get('error')}")
        texts, calls = [], []
        for item in answer["output"]:
            if item["type"] == "message":
                texts += [part.get("text") or part.get("refusal") or "" for part in item["content"]]
            elif item["type"] == "function_call":
                function = {"name": item["name"], "arguments": item["arguments"]}
                calls.append({"id": item["call_id"], "type": "function", "function": function})
        message: Message = {"role": "assistant", "content": "".join(texts) or None, ITEMS: answer["output"]}
        if calls:
            message["tool_calls"] = calls
        usage = answer.get("usage") or {}
        cut = (answer.get("incomplete_details") or {}).get("reason")
        return Reply(
            message,
            int(usage.get("input_tokens") or 0),
            int(usage.get("output_tokens") or 0),
            finish_reason=cut or ("tool_calls" if calls else "stop"),
            model=answer.get("model"),
        )

    def messages(self, request: Json) -> list[Message]:
        found: list[Message] = []
        if request.get("instructions"):
            found.append({"role": "system", "content": request["instructions"]})
        given = request.get("input")
        if isinstance(given, str):
            return [*found, {"role": "user", "content": given}]
        return [*found, *(_read_item(item) for item in objects(given))]

    def assembled(self, events: Iterable[Json], *, cut_off: bool = False) -> Json:
        found: Json = {}
        items: list[Json] = []
        for event in events:
            kind = event.get("type")
            if kind in ("response.completed", "response.incomplete", "response.failed"):
                return dict(event["response"])
            if kind == "error":
                raise InvalidAnswer(f"the stream reports an error: {event.get('message') or event}")
            if kind == "response.created":
                found = event.get("response") or {}
            elif kind == "response.output_item.done":
                items.append(event["item"])
        if not cut_off:
            raise InvalidAnswer("the stream was cut off")
        return {**found, "output": items}


def _read_item(item: Json) -> Message:
    kind = item.get("type", "message")
    if kind == "message":
        return {"role": item.get("role", "user"), "content": item.get("content")}
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        calls = [{"id": item.get("call_id"), "type": "function", "function": function}]
        return {"role": "assistant", "content": None, "tool_calls": calls}
    return {"role": "assistant", "content": None, ITEMS: [item]}


def _items(message: Message) -> Iterator[Json]:
    role = message["role"]
    if role == "system":
        return
    if role == "tool":
        content = message["content"]
        output = content if isinstance(content, str) else text_of(content)
        yield {"type": "function_call_output", "call_id": message["tool_call_id"], "output": output}
    elif ITEMS in message:
        yield from message[ITEMS]
    elif role == "assistant":
        if message.get("content"):
            yield {"role": "assistant", "content": text_of(message["content"])}
        for call in message.get("tool_calls") or ():
            function = call["function"]
            yield {
                "type": "function_call", "call_id": call["id"], "name": function["name"],
                "arguments": function["arguments"],
            }  # fmt: skip
    else:
        yield {"role": "user", "content": _parts(message["content"])}


def _parts(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [
        {"type": "input_image", "image_url": part["image_url"]["url"]}
        if part["type"] == "image_url"
        else {"type": "input_text", "text": part.get("text", "")}
        for part in content
    ]
