"""A person in a browser as the user of a rollout's episodes: what `aenv rollout --user console` asks.

The rollout waits for the person's words, and the page for the agent's: it asks with the number of the last state that
it has seen, and is answered when there is another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from aenv.errors import Conflict, InvalidArguments
from aenv.http.messages import Request, Response
from aenv.rollout.users.user import UserMessage, digest
from aenv.schema.tasks import UserProfile

PATH = "/console/user"
HOLD_SECONDS = 20.0
"""How long a question of the page waits for another state."""


class UserAnswer(BaseModel):
    """Answer of the person."""

    model_config = ConfigDict(extra="forbid")

    turn: int
    """Number of the turn that it answers: one that is over is refused."""
    text: str = Field(default="", max_length=100_000)
    leave: bool = False


class WebUser:
    """A person who is asked in the console."""

    answer_seconds: float | None = None
    one_at_a_time = True

    def __init__(self) -> None:
        self._turn = 0
        self._version = 0
        self._profile: UserProfile | None = None
        self._messages: list[UserMessage] = []
        self._answer: asyncio.Future[str | None] | None = None
        self._changed = asyncio.Event()

    async def answer(self, profile: UserProfile, messages: Sequence[UserMessage]) -> str | None:
        """Show the conversation, and return what the person answers; None: the person leaves."""
        self._turn += 1
        self._profile, self._messages = profile, list(messages)
        answered = self._answer = asyncio.get_running_loop().create_future()
        self._tell()
        try:
            text: str | None = await answered
        finally:
            self._answer = None
            self._tell()
        self._messages.append(UserMessage("user", text if text is not None else "(you left)"))
        return text

    def about(self) -> dict[str, Any]:
        return {"kind": "human", "model": None, "prompt": digest("human")}

    def close(self) -> None:
        return

    async def page_answer(self, request: Request) -> Response:
        """Answer the page: ``GET`` with the conversation, when it is not the one that was seen; ``POST`` takes words.

        Raises:
            InvalidArguments: the request is malformed.
            Conflict: the turn is over.
        """
        if request.method == "GET":
            seen = request.query.removeprefix(b"seen=").decode("latin-1")
            if seen == str(self._version):
                await self._next()
            return _ok(self._state())
        if request.stream is not None:
            request.body, request.stream = b"".join([data async for data in request.stream]), None
        try:
            given = UserAnswer.model_validate_json(request.body)
        except ValidationError as error:
            raise InvalidArguments(f"invalid answer: {error.errors()[0]['msg']}") from None
        if self._answer is None or self._answer.done() or given.turn != self._turn:
            raise Conflict("nobody waits for this answer any more")
        if not given.leave and not given.text.strip():
            raise InvalidArguments("the answer is empty")
        self._answer.set_result(None if given.leave else given.text.strip())
        return _ok({})

    async def _next(self) -> None:
        changed = self._changed
        try:
            async with asyncio.timeout(HOLD_SECONDS):
                await changed.wait()
        except TimeoutError:
            return

    def _tell(self) -> None:
        self._version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def _state(self) -> dict[str, Any]:
        profile = self._profile
        known = {} if profile is None else profile.model_dump(include={"goal", "persona", "knowledge"})
        return {
            "version": self._version,
            "turn": self._turn,
            "waits": self._answer is not None and not self._answer.done(),
            "profile": known,
            "messages": [{"by": each.by, "text": each.text} for each in self._messages],
        }


def _ok(data: dict[str, Any]) -> Response:
    head = b"content-type: application/json\r\ncache-control: no-store\r\n"
    return Response(200, to_json({"success": True, "code": 0, "message": "", "data": data}), head)
