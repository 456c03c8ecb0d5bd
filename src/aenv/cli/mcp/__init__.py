"""Parts of the commands that connect MCP programs: the Inspector, desktop hosts, a bridge to stdin and stdout."""
