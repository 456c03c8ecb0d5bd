"""A person at a terminal as the user of an episode."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from aenv.rollout.users.user import UserMessage, digest
from aenv.schema.tasks import UserProfile

PROMPT = "you> "


class HumanUser:
    """A person who reads and writes in the terminal. An end of input (Ctrl-D) leaves the conversation.

    Args:
        read: Returns a line that the person writes; raises EOFError at the end of input.
        write: Shows a text.
    """

    answer_seconds: float | None = None
    one_at_a_time = True

    def __init__(self, read: Callable[[str], str] | None = None, write: Callable[[str], object] | None = None) -> None:
        self._read = read or _StandardInput().line
        self._write = write or _print

    async def answer(self, profile: UserProfile, messages: Sequence[UserMessage]) -> str | None:
        """Show the agent's last message, and return what the person answers; first, show the profile."""
        if messages:
            self._write(f"agent> {messages[-1].text}")
        else:
            self._write(_role(profile))
        while True:
            try:
                said = await _in_thread(lambda: self._read(PROMPT))
            except EOFError:
                return None
            if said.strip():
                return said.strip()

    def about(self) -> dict[str, Any]:
        return {"kind": "human", "model": None, "prompt": digest("human")}

    def close(self) -> None:
        return


def _role(profile: UserProfile) -> str:
    facts = [f"{name}: {fact}" for name, fact in profile.knowledge.items()]
    lines = ["", "You are the user of this episode. Ctrl-D leaves the conversation.", profile.persona, profile.goal]
    return "\n".join(line for line in (*lines, *facts) if line is not None)


class _StandardInput:
    """Lines of the standard input, read from its descriptor.

    `input` would show its prompt among the results, and a thread that waits in it holds a lock of ``sys.stdin`` without
    which the interpreter cannot end after Ctrl-C.
    """

    def __init__(self) -> None:
        self._rest = b""

    def line(self, prompt: str) -> str:
        """Show the prompt and return the next line. Raises EOFError at the end of input."""
        _print(prompt, end="")
        while b"\n" not in self._rest:
            data = os.read(sys.stdin.fileno(), 65536)
            if not data:
                break
            self._rest += data
        if not self._rest:
            raise EOFError
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode("utf-8", "replace")


def _print(text: str, end: str = "\n") -> None:
    sys.stderr.write(f"{text}{end}")
    sys.stderr.flush()


async def _in_thread(read: Callable[[], str]) -> str:
    """Run ``read`` in a daemon thread: unlike a pool's, it does not hold up the end of the program while it waits."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[str] = loop.create_future()

    def settle(value: str | None, error: BaseException | None) -> None:
        if not done.done():
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(value or "")

    def work() -> None:
        value: str | None = None
        failure: BaseException | None = None
        try:
            value = read()
        except Exception as error:
            failure = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=work, name="human user", daemon=True).start()
    return await done
