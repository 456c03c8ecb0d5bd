"""The way to a server: one lean HTTP transport, and typed clients on top of it."""
