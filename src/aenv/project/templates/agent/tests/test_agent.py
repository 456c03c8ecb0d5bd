"""Unit tests of the agent: no server, no container, and a local HTTP server in place of the model."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

import agent


@pytest.fixture(autouse=True)
def fresh_agent_without_model(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    agent._sessions.clear()


def test_the_agent_replies_without_a_model():
    assert "Hello" in agent.chat("hello")


def test_the_agent_remembers_earlier_messages_of_a_session():
    agent.chat("my cat is called Momo")
    assert "Momo" in agent.chat("what do you remember?")


def test_sessions_are_separate():
    agent.chat("my cat is called Momo", session="a")
    assert "Momo" not in agent.chat("what do you remember?", session="b")


def test_reset_forgets_one_session():
    agent.chat("one", session="a")
    agent.chat("two", session="b")
    assert agent.reset("a") == "Forgot 2 messages."
    assert agent.history("a") == []
    assert len(agent.history("b")) == 2


def test_the_model_gets_the_whole_conversation(monkeypatch, model):
    monkeypatch.setenv("OPENAI_BASE_URL", model.url)
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert agent.chat("first") == "reply 1"
    assert agent.chat("second") == "reply 2"
    sent = [message["content"] for message in model.requests[1]["messages"]]
    assert sent[1:] == ["first", "reply 1", "second"]
    assert model.keys == ["Bearer secret", "Bearer secret"]


def test_a_failing_model_is_an_error_and_leaves_no_message(monkeypatch, model):
    model.fails = True
    monkeypatch.setenv("OPENAI_BASE_URL", model.url)
    with pytest.raises(RuntimeError, match="answered 500"):
        agent.chat("hello")
    assert agent.history() == []


class Model:
    """An OpenAI-compatible endpoint that counts its replies."""

    def __init__(self):
        self.requests, self.keys, self.fails = [], [], False
        model = self

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                model.requests.append(request)
                model.keys.append(self.headers.get("Authorization"))
                reply = {"choices": [{"message": {"content": f"reply {len(model.requests)}"}}]}
                self.send_response(500 if model.fails else 200)
                self.end_headers()
                self.wfile.write(json.dumps(reply).encode())

            def log_message(self, *args):
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"


@pytest.fixture
def model():
    model = Model()
    thread = threading.Thread(target=model.server.serve_forever, args=(0.01,))
    thread.start()
    yield model
    model.server.shutdown()
    thread.join()
    model.server.server_close()
