"""A program without an event loop that runs a rollout until Ctrl-C. Run by the tests of this folder."""

from __future__ import annotations

import sys
from pathlib import Path

from aenv.rollout import Episode, rollout


async def agent(episode: Episode) -> None:
    """Finish the first sample, and wait in the others."""
    if episode.sample:
        await episode.call("nap", seconds=600)


def main(project: str, store: str) -> int:
    made = rollout(project, agent=agent, samples=3, limit=1, store=Path(store), run="blocking", concurrency=3)
    try:
        for result in made:
            print(result.sample, result.outcome, flush=True)
    except KeyboardInterrupt:
        print("interrupted", made.progress.running, flush=True)
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
