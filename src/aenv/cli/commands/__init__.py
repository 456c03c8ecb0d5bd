"""One file per command; ``aenv.cli.main`` has the list."""
