from __future__ import annotations

import asyncio

from aenv.engines.native.pool import Pool
from tests.conftest import run
from tests.waiting import wait_until


def pool_of(made: list[int], ended: list[int], **options: int) -> Pool[int]:
    async def make(key: str) -> int:
        made.append(len(made))
        return made[-1]

    async def end(one: int) -> None:
        ended.append(one)

    return Pool(make, end, lambda one: one >= 0, **options)


def test_a_single_request_pools_nothing(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("aenv.engines.native.pool.PATIENCE", 0)
    made: list[int] = []

    async def main() -> None:
        pool = pool_of(made, [])
        assert pool.take("a") is None
        pool.refill("a")
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})  # it has nothing to make
        assert pool.take("a") is None
        await pool.close()

    run(main())
    assert made == []


def test_repeated_requests_fill_the_pool(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("aenv.engines.native.pool.PATIENCE", 0)
    made: list[int] = []

    async def main() -> None:
        pool = pool_of(made, [], most=3)
        for _ in range(10):
            pool.take("a")
        pool.refill("a")
        await wait_until(lambda: list(pool.ready()) == [0, 1, 2])
        assert pool.take("a") == 0
        assert pool.take("b") is None
        assert pool.drop(lambda one: one != 1) == [1]
        assert list(pool.ready()) == [2]
        await pool.close()

    run(main())


def test_pooled_sandboxes_without_requests_are_ended(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("aenv.engines.native.pool.PATIENCE", 0)
    monkeypatch.setattr("aenv.engines.native.pool.KEPT", 0.05)
    ended: list[int] = []

    async def main() -> None:
        pool = pool_of([], ended)
        pool.take("a")
        pool.take("a")
        pool.refill("a")
        while not ended:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await pool.close()

    run(main())
    assert ended == [0]


def test_a_sandbox_that_is_made_while_others_are_dropped_stays_in_the_pool(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("aenv.engines.native.pool.PATIENCE", 0)

    async def make(key: str) -> int:
        assert pool.drop(lambda one: True) == []  # as the engine does when it makes a sandbox
        return 1

    async def end(one: int) -> None:
        raise AssertionError("nothing is to be ended")

    pool: Pool[int] = Pool(make, end, lambda one: True)

    async def main() -> None:
        await pool.hold("a", 1)
        assert pool.held("a") == 1
        await pool.close()

    run(main())
