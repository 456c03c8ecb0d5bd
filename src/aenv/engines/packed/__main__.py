"""The command of a host pod: ``python3 -m aenv.engines.packed``, with its settings in variables."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

from aenv.engines.base import EngineOptions
from aenv.engines.packed import host_server
from aenv.errors import AEnvError


def main() -> int:
    """Serve; return the exit code of the process."""
    token = os.environ.pop("AENV_HOST_TOKEN")
    isolation: Any = os.environ.pop("AENV_HOST_ISOLATION", "confined")
    address = os.environ.pop("AENV_HOST_ADDRESS")
    options = EngineOptions(pool=int(os.environ.pop("AENV_HOST_POOL", "8")), isolation=isolation, listen=address)
    with tempfile.TemporaryDirectory(prefix="aenv-host-") as folder:
        try:
            asyncio.run(host_server.main(Path(folder), token, options))
        except AEnvError as error:
            print(f"Error: {error.message}", flush=True)  # noqa: T201
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
