"""A FastMCP server that echoes, over HTTP."""

import sys

from fastmcp import FastMCP

mcp = FastMCP("bench")


@mcp.tool
def echo(content: str) -> dict:
    """Give back what came in."""
    return {"result": content}


mcp.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False, log_level="warning")
