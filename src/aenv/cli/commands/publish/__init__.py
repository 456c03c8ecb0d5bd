"""Commands to publish, find and fetch versions of environments."""
