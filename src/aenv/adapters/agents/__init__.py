"""Agent frameworks."""
