"""Users that need no model: one that follows the script of its profile, and one that a function plays."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aenv.rollout.users.user import UserMessage, digest
from aenv.schema.tasks import UserProfile

AGREES = "Yes, please go ahead."
RULES = 1
"""Version of the rules below, for the digest."""


class ScriptedUser:
    """Follows the profile's script; where it has no answer, tells what it knows, and agrees to everything else.

    The opening is that of the profile, or its goal. A message of the agent is answered with the first of these:

    1. the first answer of the script that was not given yet and whose ``when`` is found in the message,
    2. the facts of ``knowledge`` that a question mentions by name,
    3. agreement, if the message is a question.

    Otherwise the user leaves. For tests, offline runs and comparisons: a score with it says how well an agent acts, not
    how well it talks.
    """

    answer_seconds: float | None = None
    one_at_a_time = False

    async def answer(self, profile: UserProfile, messages: Sequence[UserMessage]) -> str | None:
        """Return the next message; see `User.answer`."""
        if not messages:
            return profile.opening or profile.goal
        left = list(profile.script)
        said: str | None = None
        for message in messages:
            if message.by == "agent":
                fitting = next((each for each in left if re.search(each.when, message.text, re.IGNORECASE)), None)
                if fitting is not None:
                    left.remove(fitting)
                said = fitting.say if fitting is not None else _unscripted(profile, message.text)
        return said

    def about(self) -> dict[str, Any]:
        return {"kind": "scripted", "model": None, "prompt": digest("scripted", RULES)}

    def close(self) -> None:
        return


def _unscripted(profile: UserProfile, text: str) -> str | None:
    if "?" not in text:
        return None
    lowered = text.lower()
    known = [f"My {name} is {fact}." for name, fact in profile.knowledge.items() if name.lower() in lowered]
    return " ".join(known) or AGREES


class FunctionUser:
    """A user that a function plays: ``def user(profile, messages) -> str | None``, async or not.

    Args:
        function: Gets the profile and the messages so far, and returns the next one; None: the user leaves.
        name: What to call it in results.
    """

    answer_seconds: float | None = 120.0
    one_at_a_time = False

    def __init__(self, function: Callable[[UserProfile, Sequence[UserMessage]], Any], name: str = "") -> None:
        self._function = function
        self._name = name or f"{function.__module__}:{getattr(function, '__qualname__', type(function).__name__)}"

    async def answer(self, profile: UserProfile, messages: Sequence[UserMessage]) -> str | None:
        """Return what the function returns."""
        said = self._function(profile, messages)
        if inspect.isawaitable(said):
            said = await said
        if said is not None and not isinstance(said, str):
            raise TypeError(f"the user {self._name} returned {type(said).__name__}; expected a text or None")
        return said

    def about(self) -> dict[str, Any]:
        try:
            source = Path(inspect.getfile(self._function)).read_text()
        except (OSError, TypeError):
            source = ""
        return {"kind": "function", "model": self._name, "prompt": digest("function", source)}

    def close(self) -> None:
        return
