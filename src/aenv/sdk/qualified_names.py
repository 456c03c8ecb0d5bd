"""Names of environments and tools (``env@version/tool``), and URLs of instances."""

from __future__ import annotations

from aenv.errors import ToolNotFound
from aenv.http.url import ServerUrl
from aenv.schema.ref import is_digest, order, parse_range


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
        if mine[0] != theirs[0] or not _fits(mine[1], theirs[1]):
            raise ToolNotFound(f"Tool '{tool_name}' not found in environment '{env_name}'", tool_name)
    return rest


def _fits(wanted: str, version: str) -> bool:
    """Return whether a version may be the one that ``wanted``, a version, a range or a digest, has resolved to."""
    if wanted == version or not wanted or not version or wanted in ("latest", "*") or is_digest(wanted):
        return True
    found = parse_range(wanted)
    return found is not None and found.low <= order(version) < found.high
