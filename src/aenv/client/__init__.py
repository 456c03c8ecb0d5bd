"""Typed clients of the platform, of instances and of the hub, and the local platforms of this user."""
