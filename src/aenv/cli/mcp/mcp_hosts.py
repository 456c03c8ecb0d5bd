"""Configuration of MCP hosts: the formats in which desktop programs are told how to start a server."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class StdioServer:
    """An MCP server that a host starts as a program."""

    name: str
    command: str
    arguments: Sequence[str]
    variables: Mapping[str, str]

    def entry(self, *, typed: bool = False) -> dict[str, Any]:
        """Return its JSON entry."""
        kind = {"type": "stdio"} if typed else {}
        variables = {"env": dict(self.variables)} if self.variables else {}
        return {**kind, "command": self.command, "args": list(self.arguments), **variables}


@dataclass(frozen=True, slots=True)
class McpHost:
    """A program that starts MCP servers."""

    title: str
    file: str
    """Path of its configuration."""
    text: Callable[[StdioServer], str]
    """Formats the configuration."""


def _json(key: str, *, typed: bool = False) -> Callable[[StdioServer], str]:
    def text(server: StdioServer) -> str:
        return json.dumps({key: {server.name: server.entry(typed=typed)}}, indent=2, ensure_ascii=False)

    return text


def _toml(server: StdioServer) -> str:
    lines = [f"[mcp_servers.{json.dumps(server.name)}]", f"command = {json.dumps(server.command)}"]
    lines.append(f"args = {json.dumps(list(server.arguments))}")
    if server.variables:
        pairs = ", ".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in server.variables.items())
        lines.append(f"env = {{ {pairs} }}")
    return "\n".join(lines)


HOSTS: dict[str, McpHost] = {
    "claude": McpHost(
        "Claude Desktop",
        "claude_desktop_config.json (Settings, Developer, Edit Config)",
        _json("mcpServers"),
    ),
    "claude-code": McpHost("Claude Code", ".mcp.json in the project", _json("mcpServers", typed=True)),
    "codex": McpHost("Codex", "~/.codex/config.toml", _toml),
    "cursor": McpHost("Cursor", "~/.cursor/mcp.json, or .cursor/mcp.json in the project", _json("mcpServers")),
    "gemini": McpHost("Gemini CLI", "~/.gemini/settings.json", _json("mcpServers")),
    "vscode": McpHost("VS Code", ".vscode/mcp.json in the workspace", _json("servers", typed=True)),
    "windsurf": McpHost("Windsurf", "~/.codeium/windsurf/mcp_config.json", _json("mcpServers")),
    "zed": McpHost("Zed", "settings.json", _json("context_servers")),
}


def aenv_program() -> tuple[str, list[str]]:
    """Return command and first arguments that run this installation of aenv.

    An absolute path: desktop programs have neither the shell's PATH nor its virtual environment.
    """
    script = Path(sys.executable).with_name("aenv")
    if os.access(script, os.X_OK):
        return str(script), []
    return sys.executable, ["-m", "aenv.cli"]
