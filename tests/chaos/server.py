"""``aenv serve`` with a clock that a test can set: its first argument is a file with the clock's error in seconds."""

from __future__ import annotations

import datetime
import struct
import sys
import time
from pathlib import Path

right, offset = time.time, Path(sys.argv.pop(1))


def shown() -> float:
    return right() + float(struct.unpack("=d", offset.read_bytes())[0])


class Shown(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Shown:
        return cls.fromtimestamp(shown(), tz)


time.time = shown
datetime.datetime = Shown  # type: ignore[misc]

if __name__ == "__main__":
    from aenv.cli.main import main

    sys.exit(main(["serve", *sys.argv[1:]]))
