"""Earlier import path of ``Tool`` and its registry; the code is in ``aenv.authoring``."""

from aenv.authoring.declarations import Registry as ToolRegistry
from aenv.authoring.declarations import get_registry, register_tool
from aenv.authoring.tool import Tool

__all__ = ["Tool", "ToolRegistry", "get_registry", "register_tool"]
