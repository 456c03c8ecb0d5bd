"""An OpenAI-compatible endpoint on the loopback whose answers a function gives: a model that needs no network."""

from __future__ import annotations

import ast
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = dict[str, Any] | str
"""A message of the assistant's, or only its text."""


@dataclass
class ScriptedModel:
    """Where it is, and what it was asked."""

    url: str
    asked: list[dict[str, Any]] = field(default_factory=list)
    """The bodies of the requests."""
    keys: set[str] = field(default_factory=set)
    refuses: bool = False
    """Whether it takes no key, and repeats those that it was given, as services do."""


@contextmanager
def scripted_model(answer: Callable[[list[dict[str, Any]]], Answer]) -> Iterator[ScriptedModel]:
    """Serve it."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            key = self.headers.get("authorization", "").removeprefix("Bearer ")
            model.asked.append(request)
            model.keys.add(key)
            if model.refuses:
                self._send(401, {"error": {"message": f"Incorrect API key provided: {key}", "code": "invalid_api_key"}})
                return
            said = answer(request["messages"])
            message = {"role": "assistant", "content": said} if isinstance(said, str) else said
            choice = {"index": 0, "finish_reason": "tool_calls" if message.get("tool_calls") else "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            about = {"id": "1", "object": "chat.completion", "created": 1, "model": request["model"], "usage": usage}
            self._send(200, {**about, "choices": [{**choice, "message": message}]})

        def _send(self, status: int, document: dict[str, Any]) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    model = ScriptedModel(f"http://127.0.0.1:{server.server_port}/v1")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def tool_call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """A message that calls a tool."""
    call = {"id": f"call-{name}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def literal_judge(messages: list[dict[str, Any]]) -> str:
    """TAU2-Bench's judge, for agents that say things as they are written: met is what the agent has said literally."""
    conversation, _, expected = messages[-1]["content"].partition("expectedOutcomes:")
    said = "\n".join(re.findall(r"^\s*assistant: (.*)$", conversation, re.MULTILINE))
    results = []
    for outcome in ast.literal_eval(expected.strip()):
        words = re.sub(r"^(the )?agent should (tell the user (that )?)?", "", outcome, flags=re.IGNORECASE)
        results.append({"expectedOutcome": outcome, "reasoning": "literally", "metExpectation": words in said})
    return json.dumps({"results": results})
