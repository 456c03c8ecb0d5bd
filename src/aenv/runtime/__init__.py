"""What runs inside a sandbox: load the author's code, serve it over MCP and plain HTTP."""
