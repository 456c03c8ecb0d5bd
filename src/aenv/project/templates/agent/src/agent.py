"""An agent as an environment: another agent, or a trainer, talks to it through its `chat` tool.

With OPENAI_API_KEY or OPENAI_BASE_URL set, replies come from that OpenAI-compatible endpoint. With neither, a few
rules answer, so that everything around the agent can be built and tested without a model.
"""

import json
import os
import threading
import urllib.error
import urllib.request
from collections import defaultdict

from aenv import register_function, register_tool

INSTRUCTIONS = os.environ.get("AGENT_INSTRUCTIONS", "You are a helpful agent. Answer briefly.")
REMEMBERED = 40  # messages per session that a model is shown again
PATIENCE = 120  # seconds for one answer of the model

Message = dict[str, str]
_sessions: defaultdict[str, list[Message]] = defaultdict(list)
_memory = threading.Lock()  # tools may run in several threads at once


@register_tool
def chat(message: str, session: str = "default") -> str:
    """Say something to the agent and get its reply. It remembers what was said in the same session.

    Args:
        message: What you want to say.
        session: A name for the conversation; another name starts another one.
    """
    asked = {"role": "user", "content": message}
    with _memory:
        conversation = [*_sessions[session][-REMEMBERED:], asked]
    reply = think(conversation)
    with _memory:
        _sessions[session] += [asked, {"role": "assistant", "content": reply}]
    return reply


@register_tool
def reset(session: str = "default") -> str:
    """Make the agent forget a conversation.

    Args:
        session: The conversation's name.
    """
    with _memory:
        forgotten = len(_sessions.pop(session, []))
    return f"Forgot {forgotten} messages."


@register_function
def history(session: str = "default") -> list[Message]:
    """What was said in a session, oldest first.

    Args:
        session: The conversation's name.
    """
    with _memory:
        return list(_sessions.get(session, []))


def think(conversation: list[Message]) -> str:
    """The reply to the last message: this is the part to replace with an agent of your own."""
    if os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL"):
        return ask_model(conversation)
    return answer_by_rules(conversation)


def answer_by_rules(conversation: list[Message]) -> str:
    """A stand-in for a model, good enough to see memory and sessions at work."""
    said = [message["content"] for message in conversation if message["role"] == "user"]
    words = said[-1].lower()
    if "remember" in words or "did i say" in words:
        return f"You said: {'; '.join(said[:-1])}" if said[:-1] else "You have not said anything yet."
    if any(word.strip("!.,?") in ("hello", "hi", "hey") for word in words.split()):
        return "Hello! Tell me something, then ask what I remember."
    return f"You said: {said[-1]}"


def ask_model(conversation: list[Message]) -> str:
    """Ask an OpenAI-compatible endpoint."""
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
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(500).decode(errors="replace")
        raise RuntimeError(f"the model's endpoint answered {error.code}: {said}") from None
    except OSError as error:
        raise RuntimeError(f"the model's endpoint cannot be reached: {error}") from error
    return answer["choices"][0]["message"]["content"] or ""
