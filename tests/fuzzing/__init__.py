"""Hostile input, made by hypothesis, for our HTTP server and clients, and for what reads files of others.

``python -m tests.fuzzing --seconds 600 --seed 1`` tries all targets in turn (`make fuzz`); the tests run a small round.
"""
