"""Boxes: containers with no Docker, and the images that they are made of."""
