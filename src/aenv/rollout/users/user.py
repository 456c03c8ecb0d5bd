"""The interface of a user: the profile and the conversation so far in, the next message out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from aenv.schema.tasks import UserProfile


@dataclass(frozen=True, slots=True)
class UserMessage:
    """A message of a conversation between a user and an agent."""

    by: Literal["user", "agent"]
    text: str


class User(Protocol):
    """Plays the users of all episodes of a rollout. It keeps nothing of a conversation, so that one serves many."""

    answer_seconds: float | None
    """Time limit of an answer; None: no limit."""
    one_at_a_time: bool
    """True if it can have only one conversation at a time."""

    async def answer(self, profile: UserProfile, messages: Sequence[UserMessage]) -> str | None:
        """Return the next message of the user, the opening if there is none yet; None: the user leaves.

        Raises:
            Exception: the user failed. The episode has the outcome ``user`` then, and no reward.
        """
        ...

    def about(self) -> dict[str, Any]:
        """Return what a score depends on: ``kind``, ``model``, and ``prompt``, the digest of instructions and settings.

        It is recorded with every episode: scores with different users are not comparable.
        """
        ...

    def close(self) -> None:
        """Close connections."""
        ...


def digest(*parts: object) -> str:
    """Return a digest of JSON data."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
