"""``aenv yank``: hide a version."""

from aenv.cli.hub.version_notes import advice

command = advice(
    "yank",
    "yanked",
    "Take NAME@VERSION out of sight: only who names that very version or its digest still gets it.",
    lambda hub, name, version, reason: hub.yank(name, version, reason),
)
