"""Images and containers without Docker: OCI layouts, root file systems, Dockerfile builds, boxes."""
