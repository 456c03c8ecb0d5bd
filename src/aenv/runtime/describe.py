"""``python -m aenv.runtime.describe PATH``: load an environment and print what it offers, as JSON.

For `aenv push --no-sandbox`, where the user trusts the project: the caller runs it in a process that it can end.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pydantic_core import to_json

from aenv.errors import AEnvError
from aenv.runtime.endpoints import EndpointCatalog
from aenv.runtime.loader import load


def main(path: str) -> int:
    """Print it; what the author's code prints goes to stderr."""
    answer = os.dup(1)
    os.dup2(2, 1)
    try:
        catalog = EndpointCatalog(load(Path(path)))
        catalog.check()
        said = {
            "tools": [tool.model_dump(exclude_none=True) for tool in catalog.listed_tools],
            "functions": [endpoint.describe() for endpoint in catalog.functions],
            "rewards": [endpoint.describe() for endpoint in catalog.rewards],
            "health": [endpoint.describe() for endpoint in catalog.health],
        }
    except AEnvError as error:
        os.write(answer, to_json({"error": error.message}))
        return error.exit_code
    with os.fdopen(answer, "wb") as file:
        file.write(to_json(said))
        file.flush()
    os._exit(0)  # threads of the author's need not end


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
