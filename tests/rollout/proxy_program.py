"""A program that serves a capture proxy in front of a scripted model until it is killed. Run by tests of this folder.

It records every exchange in a store, and writes its base URL to a file when it is ready.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from aenv.rollout.capture import CaptureProxy, Upstream
from aenv.trajectory import EpisodeKey, TrajectoryStore
from tests.rollout.model_server import Answer, chat, model_server

RUN = "proxy"


def answer(body: dict[str, Any], number: int) -> Answer:
    """Buy as many apples as the instruction says."""
    return chat(None, ("add_to_cart", {"item": "apple", "count": int(body["messages"][0]["content"].split()[1])}))


async def main(store: Path, url_file: Path) -> None:
    with TrajectoryStore.open(store) as opened:
        recorder = opened.record(EpisodeKey(RUN, f"process-{os.getpid()}"))
        async with model_server(answer) as model, CaptureProxy(Upstream(model.url)) as proxy:
            part = url_file.with_suffix(".part")
            part.write_text(proxy.open(recorder).openai_url)
            part.replace(url_file)
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
