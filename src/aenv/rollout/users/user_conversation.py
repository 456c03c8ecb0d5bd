"""The conversation of an agent with the user of its episode, by turns of the agent or by a tool.

A user's failure is never the agent's: it ends the episode with the outcome ``user``, without a reward. But nothing that
an agent writes may have that effect, or it could get rid of bad rewards. So a conversation that became too long, and a
message that the user's model refuses, end the conversation, and the state reached is graded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from aenv.authoring.results import ToolResult
from aenv.errors import AEnvError, UsageError, UserFailed
from aenv.rollout.model import ContextExceeded, ModelRefused
from aenv.rollout.outcome import AgentLacks
from aenv.rollout.users.user import User, UserMessage, digest
from aenv.rollout.world import World, WorldInFront
from aenv.schema.tasks import Task, UserProfile

MESSAGE_CHARACTERS = 20_000
"""Length up to which a user reads a message."""
HELPER = "A user talks to you. Find out what they want, and do it with the tools. Tell them when it is done."
"""Instruction of the agent where the task's own is the goal of the user."""
TOOL = "message_user"
LEFT = "The user has left the conversation."


class UserConversation:
    """A conversation with the user of one episode.

    Args:
        user: Who plays the user; None: nobody, and the first message raises.
        profile: Goal, persona, patience and knowledge.
        note: Receives what is to be recorded of each turn.
    """

    def __init__(self, user: User | None, profile: UserProfile, note: Callable[..., object]) -> None:
        self._user = user
        self._profile = profile
        self._note = note
        self._messages: list[UserMessage] = []
        self._turn = asyncio.Lock()
        self.left: str | None = None
        """Why the conversation has ended: ``user``, ``patience`` or ``length``; None while it goes on."""

    @property
    def messages(self) -> list[UserMessage]:
        """The messages so far."""
        return list(self._messages)

    async def opening(self) -> str | None:
        """Return the first message of the user; None if they leave at once.

        Raises:
            UserFailed: the user failed; let it pass.
        """
        async with self._turn:
            if self._messages or self.left is not None:
                return self._messages[0].text if self._messages else None
            return await self._next()

    async def say(self, text: str) -> str | None:
        """Say something to the user, and return the answer; None if the user has left.

        Raises:
            UserFailed: the user failed; let it pass.
        """
        async with self._turn:
            if self.left is not None:
                return None
            self._messages.append(UserMessage("agent", text[:MESSAGE_CHARACTERS]))
            if sum(message.by == "agent" for message in self._messages) > self._profile.patience:
                self._leave("patience")
                return None
            return await self._next()

    async def _next(self) -> str | None:
        user = self._user
        if user is None:
            hint = {"hint": "Give the rollout one: user, --user."}
            raise AgentLacks("the task has a simulated user, and the rollout does not say who plays it", hint)
        began = time.monotonic()
        try:
            async with asyncio.timeout(user.answer_seconds):
                said = await user.answer(self._profile, tuple(self._messages))
        except (AgentLacks, ModelRefused, UserFailed):
            raise
        except ContextExceeded:
            self._leave("length")
            return None
        except TimeoutError as error:
            raise UserFailed(f"the user has not answered within {user.answer_seconds} s") from error
        except AEnvError as error:
            raise UserFailed(f"the user failed: {error.message}") from error
        except Exception as error:
            raise UserFailed(f"the user failed: {type(error).__name__}: {error}") from error
        if said is None:
            self._leave("user")
            return None
        self._messages.append(UserMessage("user", said))
        self._note(user_said=said, seconds=round(time.monotonic() - began, 6))
        return said

    def _leave(self, reason: str) -> None:
        self.left = reason
        self._note(user_left=reason)


def conversation_of(
    task: Task, instruction: str, user: User | None, note: Callable[..., object]
) -> tuple[UserConversation | None, str]:
    """Return the conversation of an episode and the instruction of its agent.

    A task without a profile becomes one with a user if the rollout has one: the user has the task's instruction as
    goal, and the agent is told to help the user. None: the episode has no user.
    """
    if task.user_profile is None and user is None:
        return None, instruction
    if task.user_profile is None:
        return UserConversation(user, UserProfile(goal=instruction), note), HELPER
    profile = task.user_profile
    if not profile.goal:
        return UserConversation(user, profile.model_copy(update={"goal": instruction}), note), HELPER
    return UserConversation(user, profile, note), instruction or HELPER


def about_user(task: Task, user: User | None) -> dict[str, Any] | None:
    """Return what a result says about the user of its episode: kind, model, and digests of prompt and profile."""
    if user is None:
        return None
    profile = task.user_profile or UserProfile(goal=task.instruction)
    return {**user.about(), "profile": digest(profile.model_dump(mode="json"))}


class ToolWithUser(WorldInFront):
    """An instance with one more tool, by which agents that know only tools talk to the user."""

    def __init__(self, world: World, conversation: UserConversation) -> None:
        super().__init__(world)
        self._conversation = conversation

    async def list_tools(self) -> list[dict[str, Any]]:
        """Return the tools of the environment, and the one for the user.

        Raises:
            UsageError: the environment has a tool of that name.
        """
        listed = await super().list_tools()
        if any(tool["name"].rpartition("/")[2] == TOOL for tool in listed):
            raise UsageError(f"the environment has a tool {TOOL} of its own, and cannot have a user by a tool")
        schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        about = "Say something to the user, and wait for the answer."
        return [*listed, {"name": TOOL, "description": about, "inputSchema": schema}]

    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None = None, timeout: float | None = None
    ) -> ToolResult:
        """Call a tool; see `Environment.call_tool`."""
        if tool_name != TOOL:
            return await self._world.call_tool(tool_name, arguments, timeout)
        text = (arguments or {}).get("text")
        if not isinstance(text, str):
            return ToolResult([{"type": "text", "text": "text: expected a string"}], is_error=True, fault="policy")
        said = await self._conversation.say(text)
        return ToolResult([{"type": "text", "text": LEFT if said is None else said}])
