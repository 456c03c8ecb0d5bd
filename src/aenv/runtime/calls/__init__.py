"""Calls of an environment's tools, functions and rewards: compiled endpoints, threads and deadlines."""
