"""Terminals for agents: keys in, a screen out."""
