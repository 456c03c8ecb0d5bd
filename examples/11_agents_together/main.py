# Agents that are environments: a conversation, a hierarchy, a red team against a target, a debate with a judge.
# Run it: python examples/11_agents_together/main.py

import asyncio
import os
import tempfile
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

from aenv import Environment
from aenv.testing import running

HERE = Path(__file__).parent
ROLES = ("guesser", "keeper", "searcher", "target", "attacker", "optimist", "pessimist", "judge")


class Talk:
    """Sends a message to an agent, and returns its reply."""

    def __init__(self, agents: dict[str, Environment]) -> None:
        self.agents = agents

    async def __call__(self, name: str, message: str) -> str:
        return (await self.agents[name].call_tool("chat", {"message": message})).text


async def conversation(say: Talk) -> None:
    answer, turns = "begin", 0
    while answer != "right":
        answer, turns = await say("keeper", await say("guesser", answer)), turns + 1
    print(f"conversation: found after {turns} guesses")


async def hierarchy(say: Talk) -> None:
    async def cook(ingredients: list[str]) -> str:  # an agent that asks another one, once for each part of its task
        found = await asyncio.gather(*(say("searcher", each) for each in ingredients))
        return ", ".join(f"{each}: {amount}" for each, amount in zip(ingredients, found, strict=True))

    print(f"hierarchy: {await cook(['flour', 'eggs', 'salt'])}")


async def red_team(say: Talk) -> None:
    reply, tries = "", 0
    while "swordfish" not in reply and tries < 5:
        tries += 1
        reply = await say("target", await say("attacker", reply or "begin"))
    print(f"red team: the target gave in after {tries} tries: {reply}")


async def debate(say: Talk) -> None:
    sides = {name: await say(name, "Shall we write tests?") for name in ("optimist", "pessimist")}
    said = "\n".join(f"{name}: {words}" for name, words in sides.items())
    print(f"debate: the judge chose the {await say('judge', said)}")


async def main(urls: dict[str, str]) -> None:
    async with AsyncExitStack() as stack:
        agents = {
            name: await stack.enter_async_context(Environment(f"{name}@1.0.0", aenv_url=url))
            for name, url in urls.items()
        }
        for part in (conversation, hierarchy, red_team, debate):
            await part(Talk(agents))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        servers = {
            role: stack.enter_context(running(HERE / "agents.py", log=Path(folder, role), variables={"ROLE": role}))
            for role in ROLES
        }
        urls = {role: server.url for role, server in servers.items()}
        os.environ["AENV_INSTANCE_URL"] = urls["judge"]  # no platform: servers of our own
        asyncio.run(main(urls))
