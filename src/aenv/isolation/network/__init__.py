"""Network of a sandbox: its policy, and the egress proxy with its allow list."""
