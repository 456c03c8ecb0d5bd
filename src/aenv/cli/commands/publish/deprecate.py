"""``aenv deprecate``: mark a version as deprecated."""

from aenv.cli.hub.version_notes import advice

command = advice(
    "deprecate",
    "deprecated",
    "Advise against NAME@VERSION: it works on, and whoever gets it is told the reason.",
    lambda hub, name, version, reason: hub.deprecate(name, version, reason),
)
