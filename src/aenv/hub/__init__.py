"""EnvHub: a registry of versioned environments, used over HTTP or directly from a local store."""
