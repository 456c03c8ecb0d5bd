"""Earlier import path of ``register_tool``; the code is in ``aenv.authoring.declarations``."""

from aenv.authoring.declarations import register_tool

__all__ = ["register_tool"]
