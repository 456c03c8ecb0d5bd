"""The author's API: decorators, signatures, tool results, private files, and runs of an agent's code."""
