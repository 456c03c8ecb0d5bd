"""The return value of `call_function`: a coroutine, which an agent also accepts as its instructions."""

from __future__ import annotations

import asyncio

import pytest

from aenv.sdk.answer import Answer
from tests.conftest import run

asked: list[str] = []


async def reply(text: str) -> str:
    await asyncio.sleep(0)
    asked.append(text)
    if text == "bad":
        raise ValueError(text)
    return text


def test_an_answer_can_be_awaited_gathered_waited_for_and_made_a_task() -> None:
    async def main() -> None:
        assert await Answer(reply("a")) == "a"
        assert await asyncio.gather(Answer(reply("a")), Answer(reply("b"))) == ["a", "b"]
        assert await asyncio.wait_for(Answer(reply("a")), 5) == "a"
        assert await asyncio.create_task(Answer(reply("a"))) == "a"
        with pytest.raises(ValueError, match="bad"):
            await asyncio.create_task(Answer(reply("bad")))

    assert asyncio.iscoroutine(answer := Answer(reply("a")))
    assert asyncio.run(answer) == "a"
    run(main())


def test_an_answer_can_be_cancelled_like_a_coroutine() -> None:
    async def main() -> None:
        forever = asyncio.Event()
        task = asyncio.create_task(Answer(forever.wait()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await Answer(forever.wait())

    run(main())


def test_instructions_for_every_turn_of_an_agent_take_one_call() -> None:
    async def main() -> None:
        asked.clear()
        answer = Answer(reply("Serve the customer."))
        assert [await answer("context", "agent") for _ in range(3)] == ["Serve the customer."] * 3
        assert asked == ["Serve the customer."]

    run(main())
