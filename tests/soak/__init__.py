"""Thousands of creates while processes of every kind are killed at random: ``make soak``, and a small round in CI."""
