"""Further preloaded parents: started while forks wait for all, the least busy one is used, ended when idle."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from aenv.engines.base import SandboxSpec
from aenv.engines.native import parent_copies
from aenv.engines.native.parent_copies import MOST_WAITING, WAITING, ParentCopies
from aenv.engines.native.preloaded_parents import PreloadedParents
from aenv.isolation.kernel import ptrace


class Parent:
    def __init__(self, busy: int = 0) -> None:
        self.busy = busy
        self.alive = True


class Made:
    """Makes parents on demand, and remembers what was made and ended."""

    def __init__(self, *, most: int = 3, fails: bool = False) -> None:
        self.made: list[Parent] = []
        self.ended: list[Parent] = []
        self.has_ended = asyncio.Event()
        self.busy = 0
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.now = 0.0
        self._fails = fails
        self.copies: ParentCopies[Parent] = ParentCopies(
            self._make,
            self._end,
            lambda parent: parent.alive,
            lambda parent: parent.busy,
            most=most,
            clock=lambda: self.now,
        )

    async def _make(self) -> Parent | None:
        await self.may_load.wait()
        if self._fails:
            return None
        self.made.append(Parent(self.busy))
        return self.made[-1]

    def _end(self, parent: Parent) -> None:
        self.ended.append(parent)
        self.has_ended.set()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 30))


def test_a_parent_with_few_waiting_forks_stays_the_only_one() -> None:
    async def scenario() -> None:
        made, first = Made(), Parent()
        first.busy = WAITING - 1
        assert await made.copies.choose(first) is first
        await settle()
        assert made.made == []

    run(scenario)


def test_the_least_busy_parent_is_forked_next() -> None:
    async def scenario() -> None:
        made, first = Made(), Parent()
        first.busy = WAITING
        await made.copies.choose(first)
        await settle()
        (copy,) = made.made
        assert await made.copies.choose(first) is copy
        copy.busy = WAITING
        assert await made.copies.choose(first) is first

    run(scenario)


def test_there_are_never_more_parents_than_are_of_use() -> None:
    async def scenario() -> None:
        made, first = Made(most=3), Parent(MOST_WAITING)
        made.busy = MOST_WAITING
        requests = [asyncio.create_task(made.copies.choose(first)) for _ in range(100)]
        await settle()
        assert len(made.made) == 2
        assert not any(request.done() for request in requests)
        await made.copies.close()
        await asyncio.gather(*requests)  # closing ends all waits

    run(scenario)


def test_requests_beyond_what_all_parents_take_go_to_whichever_is_free_first() -> None:
    async def scenario() -> None:
        made, first = Made(most=2), Parent(MOST_WAITING)
        made.busy = MOST_WAITING
        early, cancelled, late = (asyncio.create_task(made.copies.choose(first)) for _ in range(3))
        await settle()
        (copy,) = made.made
        copy.busy -= 1
        made.copies.fork_ended()
        assert await early is copy
        copy.busy += 1
        first.busy -= 1
        made.copies.fork_ended()
        cancelled.cancel()  # after it got its turn, which passes to the next
        assert await late is first

    run(scenario)


def test_code_that_cannot_be_loaded_twice_is_not_tried_again() -> None:
    async def scenario() -> None:
        made, first = Made(fails=True), Parent()
        first.busy = WAITING
        assert await made.copies.choose(first) is first
        await settle()
        assert await made.copies.choose(first) is first
        await settle()
        assert made.made == []

    run(scenario)


def test_a_dead_copy_is_not_used_and_is_cleaned_up() -> None:
    async def scenario() -> None:
        made, first = Made(), Parent()
        first.busy = WAITING
        await made.copies.choose(first)
        await settle()
        made.made[0].alive = False
        assert await made.copies.choose(first) is first
        assert made.ended == made.made[:1]

    run(scenario)


def test_a_copy_replaces_the_first_parent_when_that_has_died() -> None:
    async def scenario() -> None:
        made, first = Made(), Parent()
        first.busy = WAITING
        await made.copies.choose(first)
        await settle()
        assert made.copies.take() is made.made[0]
        assert made.copies.take() is None

    run(scenario)


def test_copies_end_when_they_were_not_needed_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent_copies, "IDLE_SECONDS", 0.0)

    async def scenario() -> None:
        made, first = Made(), Parent(WAITING)
        made.busy = 1
        await made.copies.choose(first)
        await settle()
        assert made.ended == []  # a fork waits for it
        made.made[0].busy = 0
        await made.has_ended.wait()
        assert made.ended == made.made

    run(scenario)


def test_closing_ends_loaded_and_loading_copies() -> None:
    async def scenario() -> None:
        made, first = Made(), Parent()
        first.busy = WAITING
        await made.copies.choose(first)
        await settle()
        made.may_load.clear()
        first.busy = made.made[0].busy = MOST_WAITING
        waiting = asyncio.create_task(made.copies.choose(first))
        await settle()
        await made.copies.close()
        assert await waiting is first
        assert made.ended == made.made
        assert len(made.made) == 1

    run(scenario)


@pytest.mark.skipif(not ptrace.supported(), reason="preloaded parents need ptrace")
def test_closing_waits_for_the_end_of_a_copy_whose_first_parent_has_died() -> None:
    """The copy is not needed any more, and is being ended when everything is closed."""

    async def scenario() -> None:
        made: list[Parent] = []
        ended: list[Parent] = []
        may_load, ending, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def make(spec: SandboxSpec) -> Parent:
            if made:
                await may_load.wait()
            made.append(Parent())
            return made[-1]

        async def end(parent: Parent) -> None:
            if parent is not made[0]:
                ending.set()
                await may_end.wait()
            ended.append(parent)

        parents = PreloadedParents(make, end, lambda one: one.alive, lambda one: one.busy, lambda one, other: True)
        spec = SandboxSpec("copied@1.0.0", Path(), Path())
        assert await parents.get("key", spec) is None, "the first request loads the code itself"
        assert await parents.get("key", spec) is None, "the second one starts a parent"
        first = await parents.get("key", spec)
        assert first is not None
        first.busy = WAITING
        assert await parents.get("key", spec) is first
        first.alive = False
        may_load.set()
        await ending.wait()
        closing = asyncio.ensure_future(parents.close())
        await settle()
        assert not closing.done()
        may_end.set()
        await closing
        assert sorted(map(id, ended)) == sorted(map(id, made))
        assert len(made) == 2

    run(scenario)


def test_closing_ends_where_a_parent_has_just_ended() -> None:
    """The task that ended it is done, and its callbacks have not run: waiting for it alone never let them."""

    async def scenario() -> None:
        async def make(_: SandboxSpec) -> Parent:
            return Parent()

        async def end(_: Parent) -> None:
            closing.set_result(asyncio.ensure_future(parents.close()))

        closing: asyncio.Future[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        parents = PreloadedParents(make, end, lambda one: one.alive, lambda one: one.busy, lambda one, other: True)
        spec = SandboxSpec("closed@1.0.0", Path(), Path())
        assert await parents.get("key", spec) is None
        assert await parents.get("key", spec) is None
        assert await parents.get("key", spec) is not None
        parents.forget("key")
        await (await closing)

    run(scenario)
