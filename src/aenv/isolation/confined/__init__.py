"""Sandboxes without namespaces, for containers that forbid them: the isolation level ``confined``."""
