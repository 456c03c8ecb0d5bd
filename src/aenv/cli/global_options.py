"""Global options of ``aenv``; commands get them with ``@click.pass_obj``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class GlobalOptions:
    debug: bool = False
    verbose: bool = False
