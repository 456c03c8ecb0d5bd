"""Wire models and paths, shared by clients and servers. No I/O."""
