# Sandboxes on this machine: no server to start, no Docker, no address. Each has its own memory, files and processes.
# Run it: python examples/01_local_sandbox.py

import asyncio

from aenv import Environment, register_reward, register_tool

total = 0


@register_tool
def add(number: int) -> int:
    """Add a number to the total."""
    global total
    total += number
    return total


@register_reward
def even() -> float:
    """1 when the total is even."""
    return 1.0 if total % 2 == 0 else 0.0


async def main() -> None:
    # This very file is the environment. The first instance starts the local platform; it stops by itself when idle.
    async with Environment(__file__) as env:
        print("total    ", (await env.call_tool("add", {"number": 2})).data)
        done = await env.exec("id -un; cat /etc/hostname /etc/shadow")
        print("inside   ", done.stdout.split(), "no rights" if done.exit_code else "rights")

    # A group of rollouts: instances in one request, each with a total of its own.
    async with Environment.batch(__file__, 4, ttl="5m") as batch:
        for number, rollout in enumerate(await batch.all()):
            result = await rollout.call_tool("add", {"number": number})
            print(f"rollout {number}: total {result.data}, reward {await rollout.call_reward()}")


if __name__ == "__main__":
    asyncio.run(main())
