"""Commands to set up aenv on this machine: settings, checks, completion."""
