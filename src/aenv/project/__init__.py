"""Projects: an environment's source on disk, its config.json, bundle, image, and publication to a hub.

Nothing here runs the author's code in this process; `discovery` loads it in a sandbox.
"""
