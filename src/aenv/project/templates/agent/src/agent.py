"""An agent as an environment: another agent, or a trainer, talks to it through its `chat` tool.

With OPENAI_API_KEY or OPENAI_BASE_URL set, replies come from that OpenAI-compatible endpoint. Without them, replies
follow a few fixed rules, so that you can build and test everything around the agent without a model.
"""

import json
import os
import threading
import urllib.error
import urllib.request
from collections import defaultdict

from aenv import register_function, register_tool

INSTRUCTIONS = os.environ.get("AGENT_INSTRUCTIONS", "You are a helpful agent. Answer briefly.")
MAX_HISTORY = 40  # messages per session that are sent to the model
TIMEOUT = 120  # seconds for one reply of the model

if os.environ.get("http_proxy", "").startswith("http://127.0.0.1:"):
    # In a sandbox, a proxy leads to the hosts of "network" in config.json: also to a model on this machine.
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = ""

Message = dict[str, str]
_sessions: defaultdict[str, list[Message]] = defaultdict(list)
_lock = threading.Lock()  # tools may run in several threads at once


@register_tool
def chat(message: str, session: str = "default") -> str:
    """Send a message to the agent and return its reply. It remembers earlier messages of the same session.

    Args:
        message: The message.
        session: Name of the conversation; a new name starts a new conversation.
    """
    question = {"role": "user", "content": message}
    with _lock:
        conversation = [*_sessions[session][-MAX_HISTORY:], question]
    reply = think(conversation)
    with _lock:
        _sessions[session] += [question, {"role": "assistant", "content": reply}]
    return reply


@register_tool
def reset(session: str = "default") -> str:
    """Make the agent forget a conversation.

    Args:
        session: Name of the conversation.
    """
    with _lock:
        forgotten = len(_sessions.pop(session, []))
    return f"Forgot {forgotten} messages."


@register_function
def history(session: str = "default") -> list[Message]:
    """Return the messages of a session, oldest first.

    Args:
        session: Name of the conversation.
    """
    with _lock:
        return list(_sessions.get(session, []))


def think(conversation: list[Message]) -> str:
    """Return the reply to the last message. Replace this function with your own agent."""
    if os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL"):
        return ask_model(conversation)
    return answer_by_rules(conversation)


def answer_by_rules(conversation: list[Message]) -> str:
    """Reply by fixed rules: enough to try memory and sessions without a model."""
    messages = [message["content"] for message in conversation if message["role"] == "user"]
    words = messages[-1].lower()
    if "remember" in words or "did i say" in words:
        return f"You said: {'; '.join(messages[:-1])}" if messages[:-1] else "You have not said anything yet."
    if any(word.strip("!.,?") in ("hello", "hi", "hey") for word in words.split()):
        return "Hello! Tell me something, then ask what I remember."
    return f"You said: {messages[-1]}"


def ask_model(conversation: list[Message]) -> str:
    """Return the reply of a model at an OpenAI-compatible endpoint."""
    base = os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
    body = {
        "model": os.environ.get("OPENAI_MODEL", "gpt-4o-mini"),
        "messages": [{"role": "system", "content": INSTRUCTIONS}, *conversation],
    }
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(
        f"{base.rstrip('/')}/chat/completions", json.dumps(body).encode(), headers
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            reason = error.read(500).decode(errors="replace")
        raise RuntimeError(f"the model's endpoint answered {error.code}: {reason}") from None
    except OSError as error:
        raise RuntimeError(f"the model's endpoint cannot be reached: {error}") from error
    return answer["choices"][0]["message"]["content"] or ""
