"""Recorded episodes that the platform keeps: those of its rollouts, and uploaded ones."""
