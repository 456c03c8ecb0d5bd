"""Linux mechanics: namespaces, mounts, limits, seccomp, and a parent that forks ready sandboxes.

Knows nothing of environments: what runs inside is a name, ``module:function``, that it imports.
"""
