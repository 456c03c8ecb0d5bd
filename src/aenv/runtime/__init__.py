"""The runtime inside a sandbox: load an environment's code, and serve it over MCP and plain HTTP."""
