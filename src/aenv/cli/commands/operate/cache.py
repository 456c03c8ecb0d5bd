"""``aenv cache``: what aenv keeps on disk because it may be needed again, and removal of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from aenv.cli.command_group import CommandGroup
from aenv.cli.output import Output, columns, note, output_option, size
from aenv.errors import UsageError

if TYPE_CHECKING:
    from aenv.storage.cache_folders import CacheEntry, CacheFolder


@click.group(cls=CommandGroup, name="cache")
def command() -> None:
    """Show and remove what is kept on disk: packages, environments, images, prepared tasks, benchmark runs.

    Everything but runs can be downloaded or built again, and what was not used for longest is removed when it takes
    more than the setting cache_budget (20Gi). What a running process uses is never removed.
    """


@command.command()
@click.option("--kind", "kinds", multiple=True, help="Only this kind; may be repeated.")
@output_option
def ls(kinds: tuple[str, ...], output: Output) -> int:
    """List what is kept, what it takes and when it was last used."""
    from aenv import config

    folders = _chosen(kinds) or list(_folders().values())
    entries = [entry for folder in folders for entry in folder.entries()]
    entries.sort(key=lambda entry: entry.last_used, reverse=True)
    total = sum(entry.bytes for entry in entries)
    said = {
        "bytes": total,
        "budget": config.load().cache_budget,
        "folders": {folder.kind: str(folder.folder) for folder in folders},
        "entries": [_facts(entry) for entry in entries],
    }
    output.show(said, lambda: _listing(folders, entries, total))
    return 0


@command.command()
@click.option("--kind", "kinds", multiple=True, help="Only this kind; may be repeated. Runs are only removed so.")
@click.option("--unused", metavar="DURATION", default="0s", help="Only what was not used for so long, like 168h.")
@click.option("--budget", metavar="SIZE", help="Remove only until the rest takes this much, like 10Gi.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed.")
@output_option
def prune(kinds: tuple[str, ...], unused: str, budget: str | None, dry_run: bool, output: Output) -> int:
    """Remove what can be made again, starting with what was not used for longest."""
    from aenv.schema import duration, quantities
    from aenv.storage import cache_folders

    try:
        limit = quantities.size(budget) if budget is not None and budget != "0" else 0
        seconds = duration.parse(unused).seconds
    except ValueError as error:
        raise UsageError(str(error)) from None
    folders = _chosen(kinds) or [folder for folder in _folders().values() if folder.automatic]
    done = cache_folders.prune(folders, budget=limit, unused_seconds=seconds, dry_run=dry_run)
    said = {"removed": [_facts(entry) for entry in done.removed], "bytes": done.bytes, "in_use": done.kept_in_use}
    word = "would be removed" if dry_run else "removed"
    output.show(said, lambda: f"{len(done.removed)} {word}, {size(done.bytes)}")
    if done.kept_in_use:
        note(f"{done.kept_in_use} in use or named, and kept")
    return 0


def _folders() -> dict[str, CacheFolder]:
    from aenv import config
    from aenv.bench import runs
    from aenv.bench.swe import prepare
    from aenv.engines import package_layers
    from aenv.images import base_systems, layered_images
    from aenv.project import fetch
    from aenv.storage.cache_folders import CacheFolder

    found = [
        package_layers.cache(),
        fetch.cache(config.cache_folder()),
        layered_images.cache(),
        base_systems.cache(),
        prepare.cache(),
        CacheFolder("runs", runs.folder(), "results of aenv bench", automatic=False),
    ]
    return {folder.kind: folder for folder in found}


def _chosen(kinds: tuple[str, ...]) -> list[CacheFolder]:
    known = _folders()
    for kind in kinds:
        if kind not in known:
            raise UsageError(f"no kind {kind!r}", {"hint": f"There are: {', '.join(known)}"})
    return [known[kind] for kind in kinds]


def _facts(entry: CacheEntry) -> dict[str, Any]:
    return {
        "kind": entry.kind,
        "name": entry.name,
        "path": str(entry.path),
        "bytes": entry.bytes,
        "last_used": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(entry.last_used)),
        "state": _state(entry),
    }


def _state(entry: CacheEntry) -> str:
    if entry.unfinished:
        return "left over"
    if entry.in_use:
        return "in use"
    return "named" if entry.pinned else "unused"


def _listing(folders: list[CacheFolder], entries: list[CacheEntry], total: int) -> str:
    if not entries:
        return "nothing is kept"
    now = time.time()
    rows = [
        (entry.kind, entry.name[:48], size(entry.bytes), _ago(now - entry.last_used), _state(entry))
        for entry in entries
    ]
    by_kind = {folder.kind: sum(entry.bytes for entry in entries if entry.kind == folder.kind) for folder in folders}
    sums = [(folder.kind, size(by_kind[folder.kind]), folder.about) for folder in folders if by_kind[folder.kind]]
    return "\n".join(
        (
            columns([("KIND", "NAME", "SIZE", "LAST USED", "STATE"), *rows], indent=""),
            "",
            columns([*sums, ("all", size(total), "")], indent=""),
        )
    )


def _ago(seconds: float) -> str:
    for step, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * step:
            return f"{int(seconds // step)} {unit} ago"
    return "just now" if seconds < 60 else "1 minute ago"
