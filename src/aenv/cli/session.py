"""What the global options of ``aenv`` say; every command can ask for it with ``@click.pass_obj``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Session:
    debug: bool = False
    verbose: bool = False
