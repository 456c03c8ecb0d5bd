"""Commands to write, run and build an environment on this machine."""
