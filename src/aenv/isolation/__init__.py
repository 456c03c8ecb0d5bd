"""Linux mechanics of sandboxes: namespaces, mounts, limits, seccomp, and a zygote that forks ready sandboxes.

This package knows nothing of environments. A sandbox runs an entry point, ``module:function``, imported by name.
"""
