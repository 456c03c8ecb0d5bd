"""EnvHub: versioned environments that others can find and run. A server of it, and one that needs no server."""
