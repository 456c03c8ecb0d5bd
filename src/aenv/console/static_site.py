"""A run as static pages: the console's own files, and the episodes as files beside them.

Any server of static files shows it; there is no API behind it. The pages are those of runs, tasks and episodes.
"""

from __future__ import annotations

import html
import shutil
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from aenv.console import assets
from aenv.errors import UsageError
from aenv.schema.trajectories import StoredRun
from aenv.trajectory.events import Event
from aenv.trajectory.reader import EpisodeReader

EVENTS_PER_FILE = 200
"""Events of a page: as many as the timeline asks for at a time."""
MAX_EPISODES = 20_000
MARK = '<meta name="aenv-static" content="data/">'
"""Tells the console that it reads files and not an API."""


def write_site(target: Path, store: EpisodeReader, run: str) -> int:
    """Write a run to a folder that is not there, or empty; return how many episodes it has.

    Raises:
        UsageError: the folder has something in it, or the run is too long.
        NotFound: there is no such run.
    """
    about = store.run(run)
    found = list(islice(store.all_episodes(about.id), MAX_EPISODES + 1))
    if len(found) > MAX_EPISODES:
        raise UsageError(f"a site holds at most {MAX_EPISODES:,} episodes")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} is not empty", {"hint": "Name a folder that is not there."})
    data = target / "data"
    data.mkdir(parents=True)
    _copy_console(target / "console")
    (target / "index.html").write_text('<!doctype html><meta http-equiv="refresh" content="0; url=console/">\n')
    for number, summary in enumerate(found):
        place = data / "episodes" / str(number)
        place.mkdir(parents=True)
        for part, events in enumerate(_parts(store.events(summary.id))):
            (place / f"{part}.json").write_bytes(to_json(events))
    known = StoredRun.model_validate({**about.as_json(), "episodes": store.counts_of(about)})
    (data / "runs.json").write_bytes(to_json([known]))
    (data / "episodes.json").write_bytes(to_json([summary.as_json() for summary in found]))
    return len(found)


def _copy_console(target: Path) -> None:
    """Copy the console's files. Headers are not ours to send here, so the policy is in the page."""
    shutil.copytree(assets.FOLDER, target, ignore=shutil.ignore_patterns("vendor", assets.FRAME))
    page = target / "index.html"
    policy = assets.POLICY.replace("frame-ancestors 'none'; ", "")
    head = f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n{MARK}\n'
    page.write_text(page.read_text().replace("<title>", f"{head}<title>", 1))


def _parts(events: Iterable[Event]) -> Iterator[list[dict[str, Any]]]:
    iterator = iter(events)
    while part := list(islice(iterator, EVENTS_PER_FILE)):
        yield part
