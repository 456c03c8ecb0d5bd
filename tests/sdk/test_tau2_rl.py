"""The entry point that trainers name, against an environment with the same functions and a model that is a script."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from aenv.errors import AEnvError
from aenv.examples.tau2_rl.agent import run_agent_return_reward
from aenv.testing import running

ENV = """
from aenv import register_function, register_reward, register_tool

log, over = [], False

@register_tool
def refund(order: str) -> dict:
    log.append(("refund", order))
    return {"observation": "refunded", "reward": 0.0, "done": False, "step": len(log)}

@register_function
def tau2_get_system_prompt() -> str:
    return "Serve the customer."

@register_function
def tau2_get_status() -> dict:
    said = [text for kind, text in log if kind == "said"]
    heard = "I want my money back for W1" if not said else "Thank you, bye"
    return {"step": len(log), "max_steps": 9, "done": over, "last_observation": heard,
            "environment": {"solo_mode": False}}

@register_function
def tau2_send_message(message: str) -> dict:
    global over
    log.append(("said", message))
    over = message == "Goodbye"
    return {"observation": "", "reward": 0.0, "done": over}

@register_function
def tau2_done() -> dict:
    global over
    over = True
    return {"done": True}

@register_reward
def tau2_reward() -> dict:
    right = ("refund", "W1") in log and over
    return {"total_reward": 1.0 if right else 0.0, "rewards": [], "done": over, "steps": len(log)}
"""


class Model(BaseHTTPRequestHandler):
    """Refunds when it is asked to, says so, and says goodbye."""

    asked: ClassVar[list[dict[str, Any]]] = []
    broken = False

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append(request)
        last = request["messages"][-1]
        message: dict[str, Any] = {"role": "assistant", "content": "Goodbye"}
        if last["role"] == "tool":
            message["content"] = "It is refunded."
        elif "money back" in str(last["content"]):
            call = {"name": "refund", "arguments": json.dumps({"order": "W1"})}
            message = {"role": "assistant", "content": None,
                       "tool_calls": [{"id": "c1", "type": "function", "function": call}]}  # fmt: skip
        answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "m",
                  "choices": [{"index": 0, "finish_reason": "stop", "message": message}]}  # fmt: skip
        self.send_response(400 if self.broken else 200)
        body = json.dumps(answer).encode()
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Model]]:
    file = tmp_path / "env.py"
    file.write_text(ENV)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    Model.asked, Model.broken = [], False
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
    try:
        with running(file, log=tmp_path / "log") as env:
            monkeypatch.setenv("DUMMY_INSTANCE_IP", env.url)
            yield Model
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_an_episode_is_played_to_its_reward(model: type[Model]) -> None:
    assert asyncio.run(run_agent_return_reward({"domain": "retail", "task_id": "1"})) == 1.0
    first, *_, last = model.asked
    assert first["messages"][0]["content"] == "Serve the customer."
    assert first["temperature"] == 1.0
    assert any(message["role"] == "tool" for message in last["messages"]), "it remembers what it did"


def test_an_episode_that_could_not_be_played_raises(model: type[Model]) -> None:
    model.broken = True
    with pytest.raises(Exception, match="400"):
        asyncio.run(run_agent_return_reward({"domain": "retail", "task_id": "1"}))


def test_an_environment_that_cannot_be_reached_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUMMY_INSTANCE_IP", "http://127.0.0.1:9")
    with pytest.raises(AEnvError):
        asyncio.run(run_agent_return_reward({"domain": "retail"}))
