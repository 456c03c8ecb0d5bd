"""Images and containers without Docker: OCI layouts, root file systems, Dockerfile builds, boxes.

A *box* is a running container that this package creates itself, from layered folders, without Docker: see `box`.
"""
