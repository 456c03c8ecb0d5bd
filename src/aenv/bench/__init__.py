"""Benchmarks: tasks, agents that do them, and what came of it. It uses environments as anybody else does."""
