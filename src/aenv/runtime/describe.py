"""``python -m aenv.runtime.describe PATH``: load an environment and print its tools and functions as JSON.

For `aenv push --no-sandbox`, where the user trusts the project: the caller runs it in a process that it can end.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pydantic_core import to_json

from aenv.errors import AEnvError
from aenv.runtime.calls.endpoints import EndpointCatalog
from aenv.runtime.loader import load


def main(path: str) -> int:
    """Print the description; output of the environment's code goes to stderr."""
    answer = os.dup(1)
    os.dup2(2, 1)
    try:
        catalog = EndpointCatalog(load(Path(path)))
        catalog.check()
        description = {
            "tools": [tool.model_dump(exclude_none=True) for tool in catalog.listed_tools],
            "functions": [endpoint.describe() for endpoint in catalog.functions],
            "rewards": [endpoint.describe() for endpoint in catalog.rewards],
            "health": [endpoint.describe() for endpoint in catalog.health],
        }
    except AEnvError as error:
        os.write(answer, to_json({"error": error.message}))
        return error.exit_code
    with os.fdopen(answer, "wb") as file:
        file.write(to_json(description))
        file.flush()
    os._exit(0)  # without waiting for threads of the environment's code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
