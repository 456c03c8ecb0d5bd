"""An environment on disk: its config.json, and how a new one is made.

This room reads and writes files of a project. It runs none of the author's code and talks to no server.
"""
