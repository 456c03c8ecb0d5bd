"""The native engine: sandboxes on this Linux machine, forked from a preloaded parent."""
