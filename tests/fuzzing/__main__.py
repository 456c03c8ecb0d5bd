"""Fuzz all targets in turn for some time, and say how many inputs were tried."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from pathlib import Path

from tests.fuzzing import exchanges, readers, servers
from tests.fuzzing.rounds import once

TARGETS = {**readers.TARGETS, **servers.TARGETS, **exchanges.TARGETS}
EXAMPLES = 200
"""Inputs in one round."""
GROWTH = 256 * 1024 * 1024
"""Bytes by which the memory in use may grow after the first round."""


def main() -> int:
    """The exit code: 1 when a target has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS], help=f"of: {', '.join(TARGETS)}; default: all")
    given = parser.parse_args()
    names = given.targets or list(TARGETS)
    tried, failed = dict.fromkeys(names, 0), []
    end, number, first = time.monotonic() + given.seconds, given.seed, 0
    print(f"fuzzing for {given.seconds:g} s from seed {number}", flush=True)
    while time.monotonic() < end and names:
        for name in list(names):
            try:
                once(TARGETS[name], number, EXAMPLES)
            except Exception as error:
                print(f"{name}: failed with seed {number}", flush=True)
                traceback.print_exception(error, limit=-6, file=sys.stdout)
                failed.append(name)
                names.remove(name)
            tried[name] += EXAMPLES
        number += 1
        first = first or _resident()
        if _resident() - first > GROWTH:
            print(f"memory grew by {_resident() - first} bytes until seed {number}", flush=True)
            failed.append("memory")
            break
    for name, count in tried.items():
        print(f"fuzz {name}: {count} inputs tried, {'failed' if name in failed else 'held'}")
    return 1 if failed else 0


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
