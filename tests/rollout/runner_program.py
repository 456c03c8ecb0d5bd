"""A program that runs a rollout until it ends or is killed. Run by the tests of this folder.

It prints a line for each result. Its agent asks a model behind a capture proxy that is a process of its own, and that
may be killed too; the base URL is in a file while that proxy runs.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from aenv.http.client import HttpClient
from aenv.http.url import ServerUrl
from aenv.rollout import Episode, ModelEndpoint, rollout
from aenv.rollout.agents.command import model_captured
from aenv.rollout.model import ModelUnavailable

POLL_SECONDS = 0.01


async def asked(url: str, instruction: str) -> dict[str, int]:
    """Return the arguments of the tool call with which the model answers."""
    body = {"model": "m-1", "messages": [{"role": "user", "content": instruction}]}
    client = HttpClient(ServerUrl.parse(url))
    try:
        answer = await client.request("POST", "/chat/completions", json.dumps(body).encode())
    finally:
        client.close()
    if answer.status != 200:
        raise ModelUnavailable(f"the model answered with HTTP status {answer.status}")
    arguments: dict[str, int] = json.loads(
        json.loads(answer.body)["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    )
    return arguments


async def url_in(file: Path) -> str:
    """Return the address of the proxy; wait for it while the proxy is being started again."""
    while True:
        with suppress(FileNotFoundError):
            return file.read_text()
        await asyncio.sleep(POLL_SECONDS)


def agent_of(url_file: Path) -> Callable[[Episode], Awaitable[None]]:
    async def agent(episode: Episode) -> None:
        """Buy what the model says, with a call that is often on its way."""
        await episode.call("nap", seconds=0.02)
        episode.model = ModelEndpoint("m-1", await url_in(url_file), key="")
        async with model_captured(episode) as session:
            assert session is not None
            arguments = await asked(session.openai_url, episode.instruction)
        await episode.call("add_to_cart", **arguments)

    return agent


async def main(project: str, store: str, samples: int, url_file: str) -> None:
    made = rollout(
        project, agent=agent_of(Path(url_file)), tasks="?count=4", samples=samples, store=Path(store), run="killed",
        concurrency=4, retries=10, max_retries=5,
    )  # fmt: skip
    async for result in made.results():
        print(result.task, result.sample, result.outcome, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
