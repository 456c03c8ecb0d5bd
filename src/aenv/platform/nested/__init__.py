"""Environments that are opened from inside an instance."""
