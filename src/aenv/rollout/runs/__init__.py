"""Runs of a rollout: which episodes run, how many at a time, progress, and the lock of a run."""
