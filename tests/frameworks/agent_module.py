"""Write a module that makes an environment of an agent, and talk to it: for the tests of all frameworks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aenv import SyncEnvironment
from aenv.testing import model_server, running


def check_agent_as_environment(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check memory per session, reset, history and usage. ``code`` makes ``agent``; ``URL`` in it is the model's."""

    def answer(messages: list[dict[str, object]], tools: list[object]) -> str:
        said = [each for each in messages if each["role"] == "user"]
        return f"message {len(said)}: {json.dumps(said[-1]['content'])}"

    with model_server(answer) as model:
        module = tmp_path / "wrapped.py"
        register = "from aenv.adapters.agents.agent_environment import register_agent\nregister_agent(agent)\n"
        module.write_text(f"{code.replace('URL', model.url)}\n{register}")
        with running(module, log=tmp_path / "log") as server:
            monkeypatch.setenv("AENV_INSTANCE_URL", server.url)
            with SyncEnvironment("wrapped@1.0.0") as env:

                def chat(message: str, session: str) -> str:
                    result = env.call_tool("chat", {"message": message, "session": session}, 60)
                    assert not result.is_error, result.text
                    return result.text

                assert "message 1" in chat("one", "a")
                assert "message 2" in chat("two", "a")
                assert "message 1" in chat("one", "b")
                assert [each["role"] for each in env.call_function("history", {"session": "a"})] == [
                    "user",
                    "assistant",
                    "user",
                    "assistant",
                ]
                assert env.call_tool("reset", {"session": "a"}).text == "Forgot 4 messages."
                assert "message 1" in chat("one", "a")
                used = env.call_function("usage")
                assert used["requests"] == 4
                assert used["input_tokens"] > 0
