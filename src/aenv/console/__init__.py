"""The web console: a page over the public HTTP API of a platform, and nothing that this API does not have.

What runs in the browser is in ``static/``, as it was written: plain ES modules, CSS and HTML, without a build step.
"""
