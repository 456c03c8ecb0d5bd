"""Adapters for agent and training frameworks: one file per framework, each an optional extra."""
