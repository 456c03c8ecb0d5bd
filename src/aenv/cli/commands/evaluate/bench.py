"""``aenv bench``: run agents on benchmarks. Some benchmarks have a command of their own; ``run`` runs any of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from aenv.cli import interrupts
from aenv.cli.bench_fetch import fetch_options, fetched, given_or_fetched, install_tau2
from aenv.cli.command_group import CommandGroup
from aenv.cli.output import Output, columns, note, output_option
from aenv.errors import ConfigError, UsageError

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=CommandGroup, name="bench")
def command() -> None:
    """Run agents on benchmarks, and show the results."""


def run_options(default_agent: str) -> Callable[[F], F]:
    """Add the options that every benchmark command has."""

    def add(function: F) -> F:
        for option in (
            output_option,
            click.option(
                "--limits",
                "task_limits",
                type=click.Path(path_type=Path, exists=True, dir_okay=False),
                help='JSON file with limits of single tasks: {"TASK": {"timeout": 60, "steps": 5}}.',
            ),
            click.option("--budget-steps", type=click.IntRange(1), help="Tool calls that an agent may make in a task."),
            click.option(
                "--timeout",
                type=click.FloatRange(0, min_open=True),
                help="Seconds that an agent may take for a task.  [default: as the benchmark says]",
            ),
            click.option("--limit", type=click.IntRange(1), help="Maximum number of tasks."),
            click.option(
                "--run",
                "place",
                type=click.Path(path_type=Path),
                help="Folder of the run; an existing run is resumed.  [default: a new one]",
            ),
            click.option(
                "--parallel",
                type=click.IntRange(1),
                default=1,
                show_default=True,
                help="Tasks to run at the same time.",
            ),
            click.option(
                "--agent",
                default=default_agent,
                show_default=True,
                help="Agent that does the tasks: see `aenv bench list`.",
            ),
        ):
            function = option(function)
        return function

    return add


@command.command(name="list")
@output_option
def list_benchmarks(output: Output) -> int:
    """Show the benchmarks, and the agents and options of each."""
    from aenv.bench.registry import BENCHMARKS, kind, names

    rows = []
    for name in names():
        try:
            found = kind(name)
        except ConfigError as error:  # of another package; the others can be listed all the same
            rows.append({"name": name, "summary": error.message, "agents": {}, "options": {}})
            continue
        summary = BENCHMARKS[name][1] if name in BENCHMARKS else found.summary
        agents, options = dict(found.agents), dict(found.options)
        rows.append({"name": name, "summary": summary, "agents": agents, "options": options})

    def text() -> str:
        parts = []
        for row in rows:
            words = [*((f"agent {n}", t) for n, t in row["agents"].items()), *row["options"].items()]  # type: ignore[attr-defined]
            parts.append(f"{row['name']}: {row['summary']}\n{columns(words)}")
        return "\n".join(parts)

    output.show(rows, text)
    return 0


@command.command()
@click.argument("benchmark")
@click.option(
    "-O", "--option", "options", multiple=True, metavar="NAME=VALUE", help="Option of the benchmark; may be repeated."
)
@run_options("nop")
def run(benchmark: str, options: tuple[str, ...], **common: Any) -> int:
    """Run the tasks of any BENCHMARK; `aenv bench list` shows its options."""
    given = {}
    for text in options:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"invalid option '{text}'", {"hint": "Write it as NAME=VALUE."})
        given[name] = value
    return start(benchmark, given, **common)


@command.command()
@click.option("--instances", help="A json, jsonl or parquet file, a folder of tasks, or a dataset's name.")
@fetch_options
@click.option("--id", "ids", multiple=True, help="Run only this instance; may be repeated.")
@click.option("--repos", default="", help="Folder of clones, or a URL prefix.  [default: GitHub]")
@click.option("--split", default="", help="Split of a dataset from the datasets hub.  [default: test]")
@click.option("--no-images", is_flag=True, help="Prepare everything without SWE-bench's images.")
@click.option("--prepare", is_flag=True, help="Only build the environments, and print their folders.")
@run_options("empty")
def swe(
    instances: str | None,
    fetch: bool,
    fetch_from: str | None,
    ids: tuple[str, ...],
    repos: str,
    split: str,
    no_images: bool,
    prepare: bool,
    **common: Any,
) -> int:
    """Solve issues of SWE-bench with patches: the agents gold and empty, or a command."""
    instances = given_or_fetched("--instances", instances, "swe", fetch, fetch_from)
    source = Path(instances).expanduser()
    options = {
        "instances": str(source.resolve()) if source.exists() else instances,
        "ids": ",".join(ids),
        "repos": str(Path(repos).expanduser().resolve()) if repos and "://" not in repos else repos,
        "split": split,
        "images": "no" if no_images else "",
    }
    given = {name: value for name, value in options.items() if value}
    return _prepare_swe(given, common["output"], common["limit"]) if prepare else start("swe", given, **common)


def _prepare_swe(options: dict[str, str], output: Output, limit: int | None) -> int:
    from aenv.bench.swe.benchmark import SweBench

    async def folders() -> list[dict[str, str]]:
        found = SweBench(options)
        rows = []
        for task in list(found.tasks())[:limit]:
            made = await found.prepared(task)
            rows.append({"instance": task, "agent": str(made.agent), "grade": str(made.grade)})
            note(f"{task} is prepared")
        return rows

    rows = interrupts.run(folders())
    table = [("instance", "for an agent", "for grading"), *((r["instance"], r["agent"], r["grade"]) for r in rows)]
    output.show(rows, lambda: columns(table))
    return 0


@command.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--parallel", type=click.IntRange(1), default=1, show_default=True, help="Tasks to run at the same time.")
@output_option
def resume(run: Path, parallel: int, output: Output) -> int:
    """Resume a RUN, given by folder or name. Tasks that failed through no fault of the agent are run again."""
    from aenv.bench.runs import BenchRun

    found = BenchRun.open(run)
    return _finish(found, parallel, output)


@command.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--task", "tasks", multiple=True, help="Only this task; may be repeated.")
@click.option("--parallel", type=click.IntRange(1), default=1, show_default=True, help="Tasks to run at the same time.")
@output_option
def grade(run: Path, tasks: tuple[str, ...], parallel: int, output: Output) -> int:
    """Grade a RUN again, from what its agents have left."""
    from aenv.bench.registry import opened
    from aenv.bench.runner import grade_all
    from aenv.bench.runs import BenchRun

    found = BenchRun.open(run)
    benchmark = opened(found.request.benchmark, found.request.options)
    interrupts.run(grade_all(benchmark, found, tasks, parallel=parallel, progress=_say))
    return _show(found.summary(), output)


@command.command()
@click.argument("first", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("second", metavar="RUN", type=click.Path(path_type=Path))
@output_option
def compare(first: Path, second: Path, output: Output) -> int:
    """Compare two runs of a benchmark, task by task."""
    from aenv.bench.compare import compare as compared
    from aenv.bench.runs import BenchRun

    found = compared(BenchRun.open(first), BenchRun.open(second)).as_json()
    output.show(found, lambda: _comparison(found))
    return 0


def _comparison(found: dict[str, Any]) -> str:
    rows = [("task", "first", "second", "difference")]
    for task in found["tasks"]:
        difference = "" if task["difference"] is None else f"{task['difference']:+.3g}" if task["difference"] else "="
        rows.append((task["task"], _number(task["first"]), _number(task["second"]), difference))
    means = found["mean_rewards"]
    lines = [
        f"first:  {found['runs'][0]} ({found['agents'][0]})",
        f"second: {found['runs'][1]} ({found['agents'][1]})",
        columns(rows),
        f"mean reward {_number(means[0])} and {_number(means[1])} over {found['compared']} tasks graded in both",
        f"second is better on {found['better']}, worse on {found['worse']}, equal on {found['equal']}",
    ]
    if found["not_compared"]:
        lines.append(f"not compared, for want of a reward: {', '.join(found['not_compared'])}")
    return "\n".join(lines)


@command.command()
@click.argument("run", type=click.Path(path_type=Path), required=False)
@output_option
def show(run: Path | None, output: Output) -> int:
    """Show the results of a RUN: its folder, or its name. Without one, all runs."""
    from aenv.bench.runs import BenchRun, known

    if run is not None:
        return _show(BenchRun.open(run).summary(), output)
    rows = [found.summary() | {"name": found.path.name} for found in known()]
    heads = [
        (row["name"], row["benchmark"], row["agent"], f"{row['graded']} of {row['tasks']}", _number(row["mean_reward"]))
        for row in rows
    ]
    text = columns([("run", "benchmark", "agent", "graded", "reward"), *heads]) if heads else "there are none"
    output.show([{key: value for key, value in row.items() if key != "results"} for row in rows], lambda: text)
    return 0


@command.command()
@click.option("--tasks", help="A task's folder, a folder of such, or a name below AENV_TERMINAL_TASKS.")
@fetch_options
@click.option("--only", default="", help="Comma-separated names of tasks.")
@click.option(
    "--network", default="", help="Network of tasks: open, none, host, or comma-separated hosts.  [default: open]"
)
@run_options("nop")
def terminal(tasks: str | None, fetch: bool, fetch_from: str | None, only: str, network: str, **common: Any) -> int:
    """Run tasks of Terminal-Bench 1 and of the Harbor format, with no Docker.

    The agent is oracle (the task's own solution), nop (nobody), or a command of this machine.
    """
    tasks = given_or_fetched("--tasks", tasks, "terminal", fetch, fetch_from)
    options = {"tasks": tasks, "only": only, "network": network}
    return start("terminal", {name: value for name, value in options.items() if value}, **common)


@command.command()
@fetch_options
@click.option("--domain", default="", help="airline, retail, telecom, banking or mock.  [default: airline]")
@click.option("--split", default="", help="base, train, test or another split of the domain.  [default: base]")
@click.option("--tasks", default="", help="Comma-separated names of tasks.")
@click.option("--user", default="", help="Model of the user, such as openai/NAME.  [default: a scripted user]")
@click.option("--judge", default="", help="Model that judges the conversation, or none.")
@run_options("nop")
def tau2(
    fetch: bool, fetch_from: str | None, domain: str, split: str, tasks: str, user: str, judge: str, **common: Any
) -> int:
    """Serve customers of TAU2-Bench: the agents gold, wrong and nop, or a command.

    With --fetch, TAU2-Bench is downloaded and installed into this Python first.
    """
    checkout = fetched("tau2", fetch, fetch_from)
    if checkout is not None:
        install_tau2(checkout)
    options = {"domain": domain, "split": split, "tasks": tasks, "user": user, "judge": judge}
    return start("tau2", {name: value for name, value in options.items() if value}, **common)


def start(
    benchmark: str, options: dict[str, str], *, agent: str, parallel: int, place: Path | None, limit: int | None,
    timeout: float | None, budget_steps: int | None, task_limits: Path | None, output: Output,
) -> int:  # fmt: skip
    """Start or resume a run, and show its results."""
    from aenv.bench.limits import read_task_limits
    from aenv.bench.registry import opened
    from aenv.bench.runs import BenchRun, RunRequest

    found = opened(benchmark, options)
    tasks = found.tasks()
    nothing = {task: reward for task, reward in found.nothing().items() if task in tasks}
    limits = {name: value for name, value in (("timeout", timeout), ("steps", budget_steps)) if value is not None}
    of_tasks = read_task_limits(task_limits) if task_limits is not None else {}
    run = BenchRun.begin(place, RunRequest(benchmark, agent, options, limit, nothing, limits, of_tasks))
    return _finish(run, parallel, output)


def _finish(run: Any, parallel: int, output: Output) -> int:
    from aenv.bench.registry import opened
    from aenv.bench.runner import run_all

    note(f"Results go to {run.path}")
    benchmark = opened(run.request.benchmark, run.request.options)
    try:
        interrupts.run(run_all(benchmark, run, parallel=parallel, progress=_say))
    except KeyboardInterrupt:
        note(
            f"Interrupted: {sum(1 for _ in run.results())} results are saved. Resume with: aenv bench resume {run.path}"
        )
        raise
    note(f"See each episode with: aenv trajectory list --store {run.trajectories}")
    return _show(run.summary(), output)


def _say(result: Any, done: int, total: int) -> None:
    why = "no solution" if result.outcome == "no_solution" else result.fault
    outcome = f"reward {_number(result.reward)}" if result.counts else f"no reward ({why}): {result.error}"
    if result.counts and result.outcome in ("timeout", "budget", "destroyed"):
        outcome += f" ({result.outcome})"
    note(f"[{done}/{total}] {result.task}: {outcome[:300]}, {result.seconds['all']:.1f} s")


def _show(summary: dict[str, Any], output: Output) -> int:
    """Return 1 if a task failed for a reason that says nothing about the agent."""
    output.show(summary, lambda: _table(summary))
    return 1 if summary["faults"] else 0


def _table(summary: dict[str, Any]) -> str:
    rows = [("task", "reward", "seconds", "")]
    for result in summary["results"]:
        what = "" if result["reward"] is not None else f"{result['fault']}: {result['error'].splitlines()[0][:100]}"
        rows.append((result["task"], _number(result["reward"]), f"{result['seconds'].get('all', 0):.1f}", what))
    lines = [columns(rows) if len(rows) > 1 else "  no results yet"]
    lines.append(f"mean reward {_number(summary['mean_reward'])} over {summary['graded']} graded of {summary['tasks']}")
    if summary["do_nothing"] is not None:
        lines.append(f"doing nothing gets {_number(summary['do_nothing'])} on the same tasks")
    if summary["faults"]:
        again = f"run them again: aenv bench resume {summary['run']}"
        lines.append(f"{summary['faults']} without a reward are not counted; {again}")
    if summary["without_solution"]:
        lines.append(f"{summary['without_solution']} have no known solution, and are not counted")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
