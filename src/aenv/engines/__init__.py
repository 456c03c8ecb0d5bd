"""Turn a spec into a running sandbox, somewhere. One file per engine."""
