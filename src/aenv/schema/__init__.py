"""The words of the wire: models and paths, shared by both sides. No I/O."""
