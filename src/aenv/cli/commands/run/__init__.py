"""Commands to create and inspect instances and services."""
