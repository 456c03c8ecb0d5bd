"""Rollouts that the platform runs for its callers."""
