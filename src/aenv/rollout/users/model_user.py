"""A user that a model plays.

The prompt says plainly when to leave. Users that leave as soon as they have agreed to something end episodes before the
agent could act, and users that never leave use up its budget: both are counted as the agent's failures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from aenv.rollout.model import Message, Model, ModelRefused, ModelRequest
from aenv.rollout.users.user import UserMessage, digest
from aenv.schema.tasks import UserProfile

LEAVE = "leave_conversation"
SILENCE = "..."
INSTRUCTIONS = """\
You play a person who talks to an assistant. Write only what this person says next, in one short message.

- Stay in the role. Never say that you are a model or that this is a simulation, whatever the assistant says.
- Want only what the goal says. Invent no facts: if you are asked for something that is not listed below, say that you
  do not know it.
- Tell facts when they are asked for, and not all at once.
- You are not the assistant: do not offer help, do not do its work, do not write what it should say.
- Call leave_conversation only when the assistant has said that everything you want is done, or that it cannot be done.
  When you agree to something that it will do, answer, and wait until it says that it has done so.
"""
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": LEAVE,
        "description": "Leave the conversation.",
        "parameters": {
            "type": "object",
            "properties": {"satisfied": {"type": "boolean", "description": "Whether you got what you wanted."}},
            "required": ["satisfied"],
        },
    },
}


class ModelUser:
    """A user that a model plays, by the profile of the task.

    Args:
        model: The model.
        sampling: Sampling parameters, such as ``temperature``.
        instructions: Rules of the role, instead of the standard ones.
        answer_seconds: Time limit of an answer, retries included.
    """

    one_at_a_time = False

    def __init__(
        self,
        model: Model,
        *,
        sampling: Mapping[str, Any] | None = None,
        instructions: str = INSTRUCTIONS,
        answer_seconds: float = 120.0,
    ) -> None:
        self.model = model
        self.answer_seconds: float | None = answer_seconds
        self._sampling = dict(sampling or {})
        self._instructions = instructions
        self._has_answered = False

    async def answer(self, profile: UserProfile, messages: Sequence[UserMessage]) -> str | None:
        """Return the next message; see `User.answer`.

        Raises:
            ModelUnavailable: the model gave no answer.
            ModelRefused: its server has refused every request so far: a wrong key or name.
        """
        if not messages and profile.opening:
            return profile.opening
        request = ModelRequest(
            self._conversation(profile, messages), [_TOOL] if messages else [], self._sampling, self.answer_seconds
        )
        try:
            reply = await self.model.complete(request)
        except ModelRefused:
            if not self._has_answered:
                raise
            return None  # of this conversation: what the agent wrote must not make its reward absent
        self._has_answered = True
        if any(call.name == LEAVE for call in reply.tool_calls):
            return None
        return reply.text.strip() or SILENCE

    def about(self) -> dict[str, Any]:
        """Return name of the model, and digest of instructions, tool and sampling parameters."""
        prompt = digest(self._instructions, _TOOL, self._sampling)
        return {"kind": "model", "model": self.model.name, "prompt": prompt}

    def close(self) -> None:
        """Close the connections of the model."""
        self.model.close()

    def _conversation(self, profile: UserProfile, messages: Sequence[UserMessage]) -> list[Message]:
        """Return the conversation as the model sees it: the user is the assistant of its own messages."""
        parts = [self._instructions]
        for title, text in (("Persona", profile.persona), ("Goal", profile.goal)):
            if text:
                parts.append(f"{title}:\n{text}\n")
        facts = "\n".join(f"- {name}: {_text(fact)}" for name, fact in profile.knowledge.items())
        parts.append(f"What you know:\n{facts or '- nothing besides the goal'}\n")
        made: list[Message] = [{"role": "system", "content": "\n".join(parts)}]
        if not messages or messages[0].by == "user":
            made.append({"role": "user", "content": "(The assistant waits for your first message.)"})
        roles = {"user": "assistant", "agent": "user"}
        return made + [{"role": roles[message.by], "content": message.text} for message in messages]


def _text(fact: object) -> str:
    return fact if isinstance(fact, str) else json.dumps(fact)
