# An environment, its server and its caller in one script.
# Run it: python examples/02_hello.py

import asyncio
import os
import tempfile
from pathlib import Path

from aenv import Environment, register_function, register_reward, register_tool
from aenv.testing import running

greeted: list[str] = []


@register_tool
def greet(name: str, loudly: bool = False) -> dict:
    """Say hello to somebody.

    Args:
        name: Whom to greet.
        loudly: So that everybody hears it.
    """
    greeted.append(name)
    greeting = f"Hello, {name}!"
    return {"greeting": greeting.upper() if loudly else greeting}


@register_function
def reset() -> None:
    """Forget everybody, for the next episode."""
    greeted.clear()


@register_reward
def politeness(guests: list[str]) -> float:
    """The share of the guests that were greeted."""
    return sum(guest in greeted for guest in guests) / len(guests)


async def main() -> None:
    async with Environment("hello@1.0.0") as env:
        for tool in await env.list_tools():
            print(f"tool      {tool['name']}: {tool['description']}")
        result = await env.call_tool("greet", {"name": "Ada", "loudly": True})
        print(f"result    {result.data}")
        mistake = await env.call_tool("greet", {"nam": "Ada"})
        print(f"mistake   fault={mistake.fault}: {mistake.text}")
        print(f"reward    {await env.call_reward({'guests': ['Ada', 'Alan']})}")
        await env.call_function("reset")
        print(f"reset     {await env.call_reward({'guests': ['Ada', 'Alan']})}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, running(__file__, log=Path(folder, "log")) as server:
        os.environ["AENV_INSTANCE_URL"] = server.url  # as after: aenv run examples/02_hello.py
        asyncio.run(main())
