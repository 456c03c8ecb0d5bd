"""Take over the settings file of the earlier package (0.1.x) when a command first meets it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from aenv.cli.output import note
from aenv.schema.earlier_settings import is_earlier


def take_over() -> None:
    """Rewrite the user's own settings file in today's form if the earlier CLI wrote it, and say so.

    The original is kept beside it. A file that cannot be rewritten is left as it is: `aenv.config` reads it too.
    """
    path = Path(os.environ.get("AENV_CONFIG") or Path.home() / ".aenv" / "cli_config.json")
    try:
        if not is_earlier(json.loads(path.read_bytes())):
            return
    except (OSError, ValueError, RecursionError):
        return  # the command reports an invalid file
    from aenv import config
    from aenv.errors import AEnvError

    kept = path.with_name(f"{path.name}.0.1.bak")
    try:
        document = config.read(path)
        original = path.read_bytes()
        with open(os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(original)
        config.write(document, path)
    except (AEnvError, OSError):
        return
    dropped = "" if document.get("hub_config", {}).get("hub_backend") else ", without its default hub"
    note(f"Note: took over the settings of the earlier aenv in {path}{dropped}. The original is {kept}.")
