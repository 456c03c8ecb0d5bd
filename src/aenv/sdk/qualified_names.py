"""Names of environments and tools (``env@version/tool``), and URLs of instances."""

from __future__ import annotations

from aenv.errors import ToolNotFound
from aenv.http.url import ServerUrl


def split_env_name_version(env_name: str) -> tuple[str, str]:
    """Split ``name@version``; without a version, it is empty."""
    name, _, version = env_name.partition("@")
    return name, version


def make_mcp_url(url: str, port: int, path: str = "") -> str:
    """Return ``url`` with ``port`` and ``path`` added; a port, a path or TLS in ``url`` replaces ``port``."""
    base = ServerUrl.parse(url, default_port=port)
    return f"{base}{path and '/' + path.lstrip('/')}"


def bare_name(env_name: str, tool_name: str) -> str:
    """Return the tool name without ``env@version/``.

    Raises:
        ToolNotFound: the qualified name belongs to another environment than ``env_name``.
    """
    prefix, slash, rest = tool_name.partition("/")
    if not slash:
        return tool_name
    if prefix != env_name:
        mine, theirs = split_env_name_version(env_name), split_env_name_version(prefix)
        same_version = mine[1] == theirs[1] or not (mine[1] and theirs[1])
        if mine[0] != theirs[0] or not same_version:
            raise ToolNotFound(f"Tool '{tool_name}' not found in environment '{env_name}'", tool_name)
    return rest
