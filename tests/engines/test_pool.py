from __future__ import annotations

import asyncio

from aenv.engines.native.pool import Pool
from tests.conftest import run


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
        await asyncio.sleep(0.01)
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
        await asyncio.sleep(0.01)
        assert list(pool.ready()) == [0, 1, 2]
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
