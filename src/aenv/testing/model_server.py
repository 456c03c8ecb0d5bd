"""A server that plays a model by a script: OpenAI Chat Completions and Anthropic Messages, plain and as a stream.

Agent frameworks and agent programs are tested with it through their own loops, without a key and without a network.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from aenv.http.messages import Request, Response
from aenv.http.server import HttpServer
from aenv.rollout.agents.scripted import ScriptedModel
from aenv.rollout.model import ModelRequest, Reply
from aenv.rollout.wires.anthropic import Anthropic
from aenv.rollout.wires.base import Json

MAX_REQUEST = 64 << 20
_EVENTS = b"content-type: text/event-stream\r\n"


class ModelServer:
    """A running server of a scripted model; see `model_server`."""

    def __init__(self, model: ScriptedModel) -> None:
        self._model = model
        self.root = ""
        """Address without ``/v1``, as Anthropic's clients want it."""
        self.requests: list[Json] = []
        """Bodies of the requests."""

    @property
    def url(self) -> str:
        """Return the base URL for OpenAI's clients."""
        return f"{self.root}/v1"

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment variables with which clients of both vendors find this server."""
        key = "scripted"
        return {
            "OPENAI_BASE_URL": self.url,
            "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": self.root,
            "ANTHROPIC_API_KEY": key,
        }

    async def handle(self, request: Request) -> Response:
        """Answer a request."""
        path = request.path.partition("?")[0]
        if path == "/v1/messages/count_tokens":
            return _json({"input_tokens": 1})
        if path not in ("/v1/chat/completions", "/v1/messages"):
            return _json({"error": {"message": f"a scripted model does not serve {path}"}}, 404)
        body: Json = json.loads(request.body)
        self.requests.append(body)
        if path == "/v1/messages":
            messages: Sequence[Json] = Anthropic().messages(body)
            tools = [{"type": "function", "function": {**tool}} for tool in body.get("tools") or ()]
            events: Callable[[str, Reply], Iterator[Json]] = _anthropic_events
            whole = _anthropic_answer
        else:
            messages, tools = body["messages"], body.get("tools") or []
            events, whole = _chat_events, _chat_answer
        reply = await self._model.complete(ModelRequest(messages, tools))
        if not body.get("stream"):
            return _json(whole(body["model"], reply))
        return Response(200, b"".join(_event(event) for event in events(body["model"], reply)), _EVENTS)


@contextmanager
def model_server(script: Any) -> Iterator[ModelServer]:
    """Serve a scripted model on the loopback interface while the block runs.

    Args:
        script: As for `ScriptedModel`: a list of answers, one for each turn, or a function of messages and tools.

    Example:
        ```python
        with model_server([calls(("add", {"a": 1, "b": 2})), "The sum is 3."]) as model:
            os.environ.update(model.variables)
            run_my_agent()
        ```
    """
    made = ModelServer(ScriptedModel(script))
    server = HttpServer(made.handle, max_body=MAX_REQUEST)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="scripted-model", daemon=True)
    thread.start()
    try:
        made.root = asyncio.run_coroutine_threadsafe(server.open("127.0.0.1", 0, None), loop).result()
        yield made
    finally:
        asyncio.run_coroutine_threadsafe(server.close(grace=0.0), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _json(document: Json, status: int = 200) -> Response:
    return Response(status, json.dumps(document).encode())


def _event(data: Json) -> bytes:
    name = f"event: {data['type']}\n" if "type" in data else ""
    text = "[DONE]" if data == _DONE else json.dumps(data)
    return f"{name}data: {text}\n\n".encode()


_DONE: Json = {"done": True}


def _chat_answer(model: str, reply: Reply) -> Json:
    choice = {"index": 0, "message": reply.message, "finish_reason": reply.finish_reason}
    return {**_chat_head(model, "chat.completion"), "choices": [choice], "usage": _chat_usage(reply)}


def _chat_events(model: str, reply: Reply) -> Iterator[Json]:
    head = _chat_head(model, "chat.completion.chunk")
    calls = [{"index": index, **call} for index, call in enumerate(reply.message.get("tool_calls") or ())]
    delta = {**reply.message, **({"tool_calls": calls} if calls else {})}
    yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reply.finish_reason}]}
    yield {**head, "choices": [], "usage": _chat_usage(reply)}
    yield _DONE


def _chat_head(model: str, kind: str) -> Json:
    return {"id": f"chatcmpl-{uuid4().hex}", "object": kind, "created": 1, "model": model}


def _chat_usage(reply: Reply) -> Json:
    read, written = reply.input_tokens, reply.output_tokens
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _anthropic_answer(model: str, reply: Reply) -> Json:
    stop = "tool_use" if reply.message.get("tool_calls") else "end_turn"
    usage = {"input_tokens": reply.input_tokens, "output_tokens": reply.output_tokens}
    blocks = [{**block, "input": json.loads(given)} if given else block for block, given in _blocks(reply.message)]
    # Clients take messages with the same id for parts of one.
    about: Json = {"id": f"msg_{uuid4().hex}", "type": "message", "role": "assistant", "model": model}
    return {**about, "content": blocks, "stop_reason": stop, "stop_sequence": None, "usage": usage}


def _anthropic_events(model: str, reply: Reply) -> Iterator[Json]:
    blocks = _blocks(reply.message)
    whole = _anthropic_answer(model, Reply({"content": None}, reply.input_tokens))
    yield {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}}
    for index, (block, given) in enumerate(blocks):
        if block["type"] == "text":
            start, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            start, delta = block, {"type": "input_json_delta", "partial_json": given}
        yield {"type": "content_block_start", "index": index, "content_block": start}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    stop = "tool_use" if reply.message.get("tool_calls") else "end_turn"
    usage = {"output_tokens": reply.output_tokens}
    yield {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": usage}
    yield {"type": "message_stop"}


def _blocks(message: Mapping[str, Any]) -> list[tuple[Json, str]]:
    """Return the content blocks of a message, those of tool calls with their arguments as text."""
    made: list[tuple[Json, str]] = (
        [({"type": "text", "text": message["content"]}, "")] if message.get("content") else []
    )
    for number, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        # Clients tell calls of one conversation apart by their ids.
        block = {"type": "tool_use", "id": f"toolu_{call['id']}_{number}", "name": function["name"], "input": {}}
        made.append((block, function["arguments"] or "{}"))
    return made
