"""``aenv trajectory``: look at recorded episodes, compare them, replay them, and make datasets of them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from aenv.cli import interrupts
from aenv.cli.command_group import CommandGroup
from aenv.cli.output import Output, color, json_text, note, output_option, size
from aenv.cli.platform_address import chosen as chosen_platform
from aenv.cli.platform_address import platform_options
from aenv.errors import NotFound, UsageError

if TYPE_CHECKING:
    from aenv.trajectory import EpisodeReader, EpisodeSummary

F = TypeVar("F", bound=Callable[..., Any])
OUTCOMES = ("ok", "policy", "env", "infra", "timeout", "user", "cancelled")

store_option = click.option(
    "--store",
    "place",
    help="Folder of the store, or URL of a platform.  [default: the platform of AENV_SYSTEM_URL or your settings, if"
    " there is one, else aenv/trajectories in your data folder]",
)
local_store_option = click.option(
    "--store",
    "path",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the store.  [default: aenv/trajectories in your data folder]",
)


def filter_options(command: F) -> F:
    """Add ``--run``, ``--task`` and ``--outcome``."""
    for option in (
        click.option("--outcome", type=click.Choice(OUTCOMES), help="Only episodes that ended so."),
        click.option("--task", help="Only episodes of this task."),
        click.option("--run", help="Only episodes of this run."),
    ):
        command = option(command)
    return command


@click.group(cls=CommandGroup, name="trajectory")
def command() -> None:
    """Look at recorded episodes, compare and replay them, and make datasets of them."""


def _open(place: str | None) -> EpisodeReader:
    """Open the store that an option names, that of the platform that is set, or the local one."""
    from aenv.trajectory import TrajectoryStore

    if place is not None and not place.startswith(("http://", "https://", "unix:")):
        return TrajectoryStore.open(Path(place))
    url, key = chosen_platform(place, None)
    if url is None:
        return TrajectoryStore.open()
    from aenv.trajectory.platform_trajectories import PlatformTrajectories

    return PlatformTrajectories(url, key)


@command.command(name="list")
@filter_options
@click.option("--runs", is_flag=True, help="List runs instead of episodes.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Most rows.")
@click.option("--after", help="Continue after this id, the last one of the page before.")
@store_option
@output_option
def list_episodes(
    run: str | None,
    task: str | None,
    outcome: str | None,
    runs: bool,
    limit: int,
    after: str | None,
    place: str | None,
    output: Output,
) -> int:
    """List episodes, newest first."""
    from aenv.cli import trajectory_view as view

    with _open(place) as store:
        if runs:
            rows = [(each, store.counts_of(each)) for each in store.runs(after=after, limit=limit)]
            shown = [{**each.as_json(), "episodes": counts} for each, counts in rows]
            output.show(shown, lambda: view.run_table(rows))
            return 0
        found = store.episodes(run, task, outcome, after=after, limit=limit, newest_first=True)
        output.show([each.as_json() for each in found], lambda: view.episode_table(found))
        if output is Output.TABLE and len(found) == limit:
            note(f"More: --after {found[-1].id}")
    return 0


@command.command()
@click.argument("episode")
@click.option("--full", is_flag=True, help="Show long texts in full.")
@click.option("--kind", "kinds", multiple=True, help="Only events of this kind; may be repeated.")
@click.option("--start", type=click.IntRange(0), default=0, help="First event to show.")
@click.option("--limit", type=click.IntRange(1), help="Most events.")
@store_option
@output_option
def show(
    episode: str, full: bool, kinds: tuple[str, ...], start: int, limit: int | None, place: str | None, output: Output
) -> int:
    """Show one EPISODE: what the agent saw and did, and how it ended."""
    from aenv.cli import trajectory_view as view

    with _open(place) as store:
        summary = store.episode(episode)
        events = store.events(summary.id, start, limit)
        if output is Output.JSON:
            wanted = [event for event in events if not kinds or event["kind"] in kinds]
            output.show({**summary.as_json(), "events": wanted}, str)
            return 0
        click.echo(view.heading(summary) + "\n", color=color())
        shown = view.EventView(_width(), full=full, kinds=frozenset(kinds))
        for line in view.as_lines(events, shown):
            click.echo(line, color=color())
    return 0


@command.command()
@click.argument("episode", required=False)
@click.option("-n", "--lines", type=click.IntRange(0), default=10, show_default=True, help="Events to begin with.")
@click.option("--follow/--no-follow", "-f", default=True, help="Wait for more until the episode is over.")
@store_option
@output_option
def tail(episode: str | None, lines: int, follow: bool, place: str | None, output: Output) -> int:
    """Follow an EPISODE while it is recorded; without one, the newest."""
    from aenv.cli import trajectory_view as view

    with _open(place) as store:
        if episode is None:
            newest = store.episodes(limit=1, newest_first=True)
            if not newest:
                raise NotFound("there are no episodes")
            episode = newest[0].id
        summary = store.episode(episode)
        if output is Output.TABLE:
            click.echo(view.heading(summary) + "\n", color=color())
        shown = view.EventView(_width())
        count = summary.events if summary.events is not None else sum(1 for _ in store.events(summary.id))
        seen = max(0, count - lines)
        while True:
            running = store.episode(summary.id).state == "running"
            for event in store.events(summary.id, seen):
                seen += 1
                for line in [json_text(event)] if output is Output.JSON else shown.lines(event):
                    click.echo(line, color=color())
            if not running or not follow:
                return 0
            time.sleep(0.2)


@command.command()
@click.argument("first")
@click.argument("second")
@store_option
@output_option
def diff(first: str, second: str, place: str | None, output: Output) -> int:
    """Show where the episodes FIRST and SECOND part. The exit code is 1 if they do."""
    from aenv.cli import trajectory_view as view
    from aenv.trajectory.difference import compare

    with _open(place) as store:
        names = (store.episode(first).id, store.episode(second).id)
        found = compare(store.events(names[0]), store.events(names[1]))
    output.show(found.as_json(), lambda: view.difference(found, names, _width()))
    return 0 if found.equal else 1


@command.command()
@filter_options
@click.option("--threshold", type=float, default=1.0, show_default=True, help="Reward from which an episode passes.")
@click.option(
    "--confidence", type=click.FloatRange(0.5, 0.999), default=0.95, show_default=True, help="Of the interval."
)
@click.option("--all-tasks", is_flag=True, help="Show every task.")
@store_option
@output_option
def stats(
    run: str | None,
    task: str | None,
    outcome: str | None,
    threshold: float,
    confidence: float,
    all_tasks: bool,
    place: str | None,
    output: Output,
) -> int:
    """Show mean reward, pass@k, pass^k and advantages, and what was left out: of one run, by default the newest."""
    from aenv.cli import trajectory_view as view
    from aenv.trajectory.statistics import summarize

    with _open(place) as store:
        if run is None and task is None:
            run = _newest_run(store)
            note(f"Run {view.clean(run)}" if run else "there are no runs")
        idle = _do_nothing(store, run) if run else None
        found = summarize(
            store.all_episodes(run, task, outcome=outcome),
            threshold=threshold,
            confidence=confidence,
            do_nothing=idle,
        )
    output.show(found.as_json(), lambda: view.statistics(found, every_task=all_tasks))
    return 0


@command.command()
@click.argument("episode")
@click.option("--env", "environment", help="Environment to replay in.  [default: the recorded one]")
@click.option("--ignore", multiple=True, metavar="REGEX", help="Do not compare what this matches; may be repeated.")
@click.option("--tasks", help="Set of tasks that opens the instance, as for aenv rollout.  [default: the recorded one]")
@click.option("--variable", "variables", multiple=True, metavar="NAME=VALUE", help="Variable; may be repeated.")
@store_option
@output_option
def replay(
    episode: str,
    environment: str | None,
    ignore: tuple[str, ...],
    tasks: str | None,
    variables: tuple[str, ...],
    place: str | None,
    output: Output,
) -> int:
    """Run the recorded calls of an EPISODE on a fresh instance. The exit code is 1 if results or reward differ."""
    from aenv.cli.trajectory_view import clean
    from aenv.trajectory.regression import described
    from aenv.trajectory.replay import replay as run_again

    given = dict(_pair(each) for each in variables)
    with _open(place) as store:
        summary = store.episode(episode)
        events = list(store.events(summary.id))
        source, chosen = _replayed_in(store, summary, tasks, environment)
    if source is not None:
        from aenv.rollout.replays import replay_task

        report = interrupts.run(replay_task(events, source, chosen or "", ignore=ignore))
    else:
        report = interrupts.run(run_again(events, chosen, ignore=ignore, variables=given))
    output.show(report.as_json(), lambda: clean("\n".join(described(report))))
    return 0 if report.equal else 1


@command.command(name="to-test")
@click.argument("episode")
@click.argument("target", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--env", "environment", help="Environment to replay in.  [default: the recorded one]")
@click.option("--ignore", multiple=True, metavar="REGEX", help="Do not compare what this matches; may be repeated.")
@click.option("--tasks", help="Set of tasks that opens the instance, as for aenv rollout.  [default: the recorded one]")
@store_option
@output_option
def to_test(
    episode: str,
    target: Path,
    environment: str | None,
    ignore: tuple[str, ...],
    tasks: str | None,
    place: str | None,
    output: Output,
) -> int:
    """Write a pytest file TARGET that replays an EPISODE, and its events beside it."""
    from aenv.trajectory.regression import write_test

    with _open(place) as store:
        summary = store.episode(episode)
        source, chosen = _replayed_in(store, summary, tasks, environment)
        events = store.events(summary.id)
        written = write_test(target, summary, events, environment=chosen, tasks=source, ignore=ignore)
    output.show([str(each) for each in written], lambda: "\n".join(f"wrote {each}" for each in written))
    return 0


EXPORTS = ("atif", "openai", "sharegpt", "verl", "trl", "areal", "datasets", "inspect", "events", "html")
IMPORTS = ("atif", "inspect", "events")


@command.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.option("-f", "--format", "format", type=click.Choice(EXPORTS), help="Format of the export.")
@click.option("--html", "as_page", is_flag=True, help="The same as --format html: one page to look at and to send.")
@click.option("--episode", "episodes", multiple=True, help="Only this episode; may be repeated.")
@filter_options
@click.option("--min-reward", type=float, help="Only episodes with at least this reward.")
@click.option("--all-attempts", is_flag=True, help="Episodes that are not the result of their sample, too.")
@store_option
@output_option
def export(
    target: Path,
    format: str | None,
    as_page: bool,
    episodes: tuple[str, ...],
    run: str | None,
    task: str | None,
    outcome: str | None,
    min_reward: float | None,
    all_attempts: bool,
    place: str | None,
    output: Output,
) -> int:
    """Write episodes to TARGET in another format: those that are the results of their samples."""
    from aenv.trajectory.formats.exchange import export as write

    if as_page and format not in (None, "html"):
        raise UsageError(f"--html and --format {format} exclude each other")
    format = "html" if as_page else format
    if format is None:
        raise UsageError("no format was chosen", {"hint": f"Say --format with one of {', '.join(EXPORTS)}."})
    with _open(place) as store:
        if run is not None:
            store.run(run)
        found = store.all_episodes(run, task, outcome=outcome, state="ended", final=None if all_attempts else True)
        wanted = (
            each.id for each in found if min_reward is None or (each.score is not None and each.score >= min_reward)
        )
        count = write(store, [store.episode(each).id for each in episodes] or wanted, format, target)
    output.show({"format": format, "target": str(target), "written": count}, lambda: f"wrote {count:,} to {target}")
    return 0


@command.command(name="import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("-f", "--format", "format", type=click.Choice(IMPORTS), required=True, help="Format of the files.")
@click.option("--run", help="Run to store the episodes in.  [default: the recorded one, or one named after the file]")
@local_store_option
@output_option
def import_files(files: tuple[Path, ...], format: str, run: str | None, path: Path | None, output: Output) -> int:
    """Store the episodes of FILES that other programs wrote."""
    from aenv.trajectory import TrajectoryStore
    from aenv.trajectory.formats.exchange import import_file

    with TrajectoryStore.open(path) as store:
        ids = [id for file in files for id in import_file(store, file, format, run)]
    output.show(ids, lambda: f"imported {len(ids):,} episodes")
    return 0


@command.command()
@filter_options
@click.option("--older-than", metavar="DURATION", help="Only episodes that began longer ago, such as 30d or 12h.")
@click.option("--all", "everything", is_flag=True, help="Every episode, if nothing else is chosen.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@store_option
@output_option
def prune(
    run: str | None,
    task: str | None,
    outcome: str | None,
    older_than: str | None,
    everything: bool,
    dry_run: bool,
    yes: bool,
    place: str | None,
    output: Output,
) -> int:
    """Remove episodes and give their space back. Running episodes stay."""
    if not (run or task or outcome or older_than or everything):
        raise UsageError("nothing was chosen", {"hint": "Say --run, --task, --outcome, --older-than, or --all."})
    before = None if older_than is None else time.time() - _seconds(older_than)
    with _open(place) as store:
        found = store.prune(run, task, outcome, before=before, dry_run=True)
        if found.episodes and not dry_run:
            if not yes:
                question = f"Remove {found.episodes:,} episodes ({size(found.bytes)}) from {store.place}?"
                click.confirm(question, abort=True, err=True)
            found = store.prune(run, task, outcome, before=before)
    done = "would be removed" if dry_run else "removed"
    shown = {"episodes": found.episodes, "bytes": found.bytes, "dry_run": dry_run}
    output.show(shown, lambda: f"{found.episodes:,} episodes {done}, {size(found.bytes)}")
    return 0


@command.command()
@filter_options
@click.option("--episode", "episodes", multiple=True, help="Only this episode; may be repeated.")
@local_store_option
@platform_options
@output_option
def push(
    run: str | None,
    task: str | None,
    outcome: str | None,
    episodes: tuple[str, ...],
    path: Path | None,
    system_url: str | None,
    api_key: str | None,
    output: Output,
) -> int:
    """Upload episodes of your local store to a platform. What it has already is not sent again."""
    from aenv.trajectory import TrajectoryStore
    from aenv.trajectory.platform_trajectories import PlatformTrajectories

    url, key = chosen_platform(system_url, api_key)
    if url is None:
        raise UsageError("no platform is set", {"hint": "Name one with --system-url, or set AENV_SYSTEM_URL."})
    with TrajectoryStore.open(path) as store, PlatformTrajectories(url, key) as platform:
        if run is not None:
            store.run(run)
        wanted = [store.episode(each) for each in episodes] or store.all_episodes(run, task, outcome=outcome)
        new, known = platform.push(store, wanted)
    shown = {"platform": url, "uploaded": new, "known": known}
    output.show(shown, lambda: f"uploaded {new:,} episodes to {url}; it had {known:,} already")
    return 0


def _replayed_in(
    store: EpisodeReader, summary: EpisodeSummary, tasks: str | None, environment: str | None
) -> tuple[str | None, str | None]:
    """Return the set of tasks and the environment to replay an episode in.

    Raises:
        UsageError: the episode comes from elsewhere, and neither was named: it must not choose which code runs here.
    """
    begin = next(store.events(summary.id, 0, 1), {})
    recorded = summary.environment.get("source") or _asked(store, summary.run, "environment")
    if not store.foreign and not begin.get("imported"):
        source = tasks or (None if environment else _asked(store, summary.run, "tasks"))
        return source, environment or recorded
    if tasks is None and environment is None:
        named = recorded or summary.environment.get("name") or "none"
        raise UsageError(
            f"episode {summary.id} was not recorded here; it names the environment {named!r:.300}",
            {"hint": "Replaying it runs the environment's code. Name the environment yourself, with --env."},
        )
    return tasks, environment


def _newest_run(store: EpisodeReader) -> str | None:
    """Return the newest run that is not the baseline of another: a mean over several agents would say nothing."""
    found = [run.id for run in store.runs(limit=20)]
    return next(
        (run for run in found if run.removesuffix("-nop") == run or run.removesuffix("-nop") not in found), None
    )


def _do_nothing(store: EpisodeReader, run: str) -> dict[str, float] | None:
    """Return the rewards of doing nothing by task: those that the run names, or those of `aenv rollout --baseline`."""
    named = store.run(run).request.get("do_nothing")
    if isinstance(named, dict):
        return named
    found = store.all_episodes(f"{run}-nop", final=True)
    return {each.task: each.score for each in found if each.score is not None} or None


def _asked(store: EpisodeReader, run: str, what: str) -> str | None:
    """Return what a run was asked to use: its ``environment`` or its ``tasks``, if that is a text."""
    try:
        asked = store.run(run).request.get(what)
    except NotFound:
        return None
    return asked if isinstance(asked, str) and asked else None


def _seconds(text: str) -> float:
    unit = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}.get(text[-1:])
    try:
        number = float(text[:-1])
    except ValueError:
        number = -1.0
    if unit is None or number < 0:
        raise UsageError(f"invalid duration {text!r}", {"hint": "Write it as 90s, 15m, 12h, 30d or 8w."})
    return number * unit


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"invalid variable {text!r}", {"hint": "Write it as NAME=VALUE."})
    return name, value


def _width() -> int:
    return shutil.get_terminal_size((100, 24)).columns
