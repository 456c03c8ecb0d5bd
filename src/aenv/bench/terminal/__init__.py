"""Terminal-Bench: tasks on a system of their own, done in a terminal, graded by tests that the agent never sees."""
