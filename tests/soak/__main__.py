"""Run the soak; the exit code says whether all that must hold did."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from tests.isolation.host import own_platform
from tests.soak.creates import soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--creates", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=12)
    parser.add_argument("--kill-every", type=float, default=0.25, help="seconds, on average")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aenv-soak-") as folder, own_platform() as platform:
        os.environ.update(platform.variables)
        summary = asyncio.run(
            soak(
                Path(folder),
                platform,
                creates=given.creates,
                seed=given.seed,
                at_once=given.at_once,
                kill_every=given.kill_every,
            )
        )
    print(summary.text())
    return 0 if summary.held else 1


if __name__ == "__main__":
    sys.exit(main())
