# Best-first search with one instance: each new state is kept as a checkpoint, to go back to.
# Run it: python examples/12_tree_search.py

import asyncio
import heapq
from typing import Any

from aenv import AEnvError, Environment, register_reward, register_tool

# --- the environment: jugs of 3, 5 and 8 litres; 8 litres are to be shared into 4 and 4

SIZES = [3, 5, 8]
jugs = [0, 0, 8]


@register_tool
def pour(source: int, target: int) -> list[int]:
    """Pour from one jug into another, until one is empty or the other full."""
    amount = min(jugs[source], SIZES[target] - jugs[target])
    jugs[source] -= amount
    jugs[target] += amount
    return jugs


@register_reward
def shared() -> float:
    """1 when two jugs have 4 litres each."""
    return 1.0 if sorted(jugs) == [0, 4, 4] else 0.0


# --- the search

MOVES = [(source, target) for source in range(3) for target in range(3) if source != target]


def distance(state: list[int]) -> int:
    """Litres that are missing from two jugs of 4; a stand-in for a value model."""
    return sum(abs(have - want) for have, want in zip(sorted(state), [0, 4, 4], strict=True))


async def main() -> None:
    async with Environment(__file__, forkable=True) as env:
        start = await env.checkpoint("start")
        frontier: list[tuple[Any, ...]] = [(0, 0, start, [], [0, 0, 8])]
        seen = {(0, 0, 8)}
        calls = replayed = 0
        while frontier:
            _, _, here, path, before = heapq.heappop(frontier)
            for source, target in MOVES:
                if not before[source] or before[target] == SIZES[target]:
                    continue
                await env.rewind(here)
                state = (await env.call_tool("pour", {"source": source, "target": target})).data
                calls += 1
                replayed += len(path) + 1  # without checkpoints, the whole path is played again
                if tuple(state) in seen:
                    continue
                seen.add(tuple(state))
                further = [*path, (source, target)]
                if await env.call_reward() == 1.0:
                    print(f"solved    in {len(further)} moves, {len(seen)} states seen")
                    print(f"calls     {calls}, instead of {replayed} with replays: {1 - calls / replayed:.0%} saved")
                    for other in await env.fork(1):  # the solution goes on in a fork as well
                        if isinstance(other, AEnvError):
                            raise other
                        async with other:
                            print(f"reward    {await env.call_reward()}, in a fork {await other.call_reward()}")
                    return
                kept = await env.checkpoint()
                heapq.heappush(frontier, (distance(state), len(seen), kept, further, state))


if __name__ == "__main__":
    asyncio.run(main())
