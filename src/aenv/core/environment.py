"""Earlier import path of ``Environment``; the code is in ``aenv.sdk``."""

from aenv.authoring.results import ToolResult
from aenv.sdk.environment import Environment, make_mcp_url, split_env_name_version

__all__ = ["Environment", "ToolResult", "make_mcp_url", "split_env_name_version"]
