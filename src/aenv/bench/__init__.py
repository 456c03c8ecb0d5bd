"""Benchmarks: tasks, agents that solve them, and their results. They use environments through the public SDK."""
