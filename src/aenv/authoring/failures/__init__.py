"""Ends that the agent caused: the state that it destroyed, and the declared reward for that."""
