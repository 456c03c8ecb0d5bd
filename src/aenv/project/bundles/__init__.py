"""Bundles of a project: packing, unpacking, and the single file for use without a hub."""
