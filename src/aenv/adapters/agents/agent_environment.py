"""An agent as an environment: one line in a module gives any agent a `chat` tool with a memory for each session.

```python
register_agent(Agent(name="librarian", instructions="..."))
```

Known are agents of the OpenAI Agents SDK, CAMEL, LangGraph and Pydantic AI, objects with a method ``run``, and
functions of the conversation. No framework is imported here: the agent's own class tells what it is.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aenv.authoring.declarations import register_function, register_tool
from aenv.errors import UsageError

Message = dict[str, Any]


@dataclass
class Session:
    """A conversation with one caller."""

    messages: list[Message] = field(default_factory=list)
    """Messages so far, as role and content."""
    memory: Any = None
    """State of the conversation that the agent's framework keeps."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True)
class AgentReply:
    """An agent's answer."""

    text: str
    memory: Any = None
    input_tokens: int = 0
    output_tokens: int = 0


Ask = Callable[[str, Session], Awaitable[AgentReply]]


def register_agent(agent: Any, *, name: str = "agent", description: str = "") -> None:
    """Make an environment of an agent: the tools ``chat`` and ``reset``, and the functions ``history`` and ``usage``.

    Each session has a memory of its own, and its messages are answered one after another. Other agents call ``chat`` as
    any tool, and an environment of theirs may open this one.

    Args:
        agent: An agent of a known framework; an object with ``run(message)``; or a function of the conversation, a list
            of messages with ``role`` and ``content``. Methods and functions may be coroutines.
        name: Name of the agent in the description of ``chat``.
        description: What the agent is for; other agents read it.

    Raises:
        UsageError: the object is no agent that is known.
    """
    ask = _asker(agent)
    sessions: defaultdict[str, Session] = defaultdict(Session)
    used = {"requests": 0, "input_tokens": 0, "output_tokens": 0}

    async def chat(message: str, session: str = "default") -> str:
        found = sessions[session]
        async with found.lock:
            reply = await ask(message, found)
            found.memory = reply.memory
            found.messages += [
                {"role": "user", "content": message},
                {"role": "assistant", "content": reply.text},
            ]
        used["requests"] += 1
        used["input_tokens"] += reply.input_tokens
        used["output_tokens"] += reply.output_tokens
        return reply.text

    chat.__doc__ = f"""Send a message to the {name} and return its reply. It remembers earlier messages of a session.
{f"{chr(10)}{description}{chr(10)}" if description else ""}
Args:
    message: The message.
    session: Name of the conversation; a new name starts a new one.
"""
    register_tool(chat)

    @register_tool
    async def reset(session: str = "default") -> str:
        """Make the agent forget a conversation.

        Args:
            session: Name of the conversation.
        """
        found = sessions.pop(session, Session())
        return f"Forgot {len(found.messages)} messages."

    @register_function
    async def history(session: str = "default") -> list[Message]:
        """Return the messages of a session, oldest first."""
        return list(sessions[session].messages) if session in sessions else []

    @register_function
    async def usage() -> dict[str, int]:
        """Return the number of answered messages, and the tokens that they took where the framework tells."""
        return dict(used)


def _asker(agent: Any) -> Ask:
    kind = type(agent)
    package = kind.__module__.partition(".")[0]
    known = {"agents": _openai_agents, "camel": _camel, "langgraph": _langgraph, "pydantic_ai": _pydantic_ai}
    if package in known:
        return known[package](agent)
    if callable(getattr(agent, "run", None)):
        return _runnable(agent.run)
    if callable(agent):
        return _function(agent)
    raise UsageError(
        f"{kind.__module__}.{kind.__qualname__} is no agent that is known",
        {"hint": "Give a function of the conversation, or an object with a method run(message)."},
    )


def _openai_agents(agent: Any) -> Ask:
    async def ask(message: str, session: Session) -> AgentReply:
        from agents import RunConfig, Runner

        turn = [*(session.memory or []), {"role": "user", "content": message}]
        done = await Runner.run(agent, turn, run_config=RunConfig(tracing_disabled=True))  # traces go to OpenAI
        used = done.context_wrapper.usage
        return AgentReply(str(done.final_output), done.to_input_list(), used.input_tokens, used.output_tokens)

    return ask


def _camel(agent: Any) -> Ask:
    async def ask(message: str, session: Session) -> AgentReply:
        own = session.memory or agent.clone(with_memory=False)
        answer = await own.astep(message)
        used = (answer.info or {}).get("usage") or {}
        text = "\n".join(str(each.content) for each in answer.msgs)
        return AgentReply(text, own, int(used.get("prompt_tokens") or 0), int(used.get("completion_tokens") or 0))

    return ask


def _langgraph(graph: Any) -> Ask:
    async def ask(message: str, session: Session) -> AgentReply:
        before = list(session.memory or [])
        state = await graph.ainvoke({"messages": [*before, {"role": "user", "content": message}]})
        messages = state["messages"]
        used = [getattr(each, "usage_metadata", None) or {} for each in messages[len(before) :]]
        read, written = (sum(each.get(name, 0) for each in used) for name in ("input_tokens", "output_tokens"))
        return AgentReply(str(messages[-1].content), messages, read, written)

    return ask


def _pydantic_ai(agent: Any) -> Ask:
    async def ask(message: str, session: Session) -> AgentReply:
        done = await agent.run(message, message_history=session.memory)
        used = done.usage() if callable(done.usage) else done.usage
        return AgentReply(str(done.output), done.all_messages(), used.input_tokens or 0, used.output_tokens or 0)

    return ask


def _runnable(run: Callable[[str], Any]) -> Ask:
    async def ask(message: str, session: Session) -> AgentReply:
        return AgentReply(str(await _result(run, message)))

    return ask


def _function(function: Callable[[list[Message]], Any]) -> Ask:
    async def ask(message: str, session: Session) -> AgentReply:
        conversation = [*session.messages, {"role": "user", "content": message}]
        return AgentReply(str(await _result(function, conversation)))

    return ask


async def _result(function: Callable[[Any], Any], given: Any) -> Any:
    """Return what a function or a coroutine function returns; a function runs in a thread, as it may block."""
    if inspect.iscoroutinefunction(function):
        return await function(given)
    done = await asyncio.to_thread(function, given)
    return await done if inspect.isawaitable(done) else done
