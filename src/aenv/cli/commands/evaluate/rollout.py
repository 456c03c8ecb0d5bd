"""``aenv rollout``: run an agent over tasks and samples."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import aclosing, nullcontext
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from aenv.cli import interrupts
from aenv.cli.console_user import console_user
from aenv.cli.output import Output, columns, note, output_option
from aenv.cli.platform_address import chosen
from aenv.cli.rollout_progress import ProgressLine
from aenv.errors import UsageError

if TYPE_CHECKING:
    from aenv.adapters.trainers.ray import RayRollout
    from aenv.rollout import EpisodeResult, Rollout
    from aenv.rollout.simulation import Simulation
    from aenv.trajectory import TrajectoryStore
    from aenv.trajectory.statistics import RunStatistics


@click.command(name="rollout")
@click.argument("environment", required=False, default="")
@click.option("--agent", default="loop", show_default=True, help="loop, gold, nop, FILE.py:NAME, or a command.")
@click.option("--tasks", help="A file, a folder or the name of a set of tasks.  [default: those of the environment]")
@click.option("--samples", type=click.IntRange(1), default=1, show_default=True, help="Episodes for each task.")
@click.option("--model", help="[API:]NAME[@URL] with the API chat, responses or anthropic; or FILE.py:NAME.")
@click.option("--sampling", multiple=True, metavar="NAME=VALUE", help="Sampling parameter; may be repeated.")
@click.option("--user", help="Who plays the user: scripted, human, console, model:MODEL, or FILE.py:NAME.")
@click.option("--simulate", help="Simulate the tools: a JSON file with the settings, or a model.")
@click.option("--reference", metavar="RUN", help="Real run to measure the simulation by.")
@click.option("--concurrency", default="auto", show_default=True, help="Episodes at the same time: a number, or auto.")
@click.option("--max-steps", type=click.IntRange(1), help="Tool calls of an episode.")
@click.option("--max-tokens", type=click.IntRange(1), help="Tokens of an episode, read and written.")
@click.option("--max-seconds", type=float, help="Seconds of an episode.")
@click.option("--max-cost", type=float, help="Cost of an episode; needs --price, or a server that reports costs.")
@click.option("--price", metavar="IN/OUT", help="Price of a million tokens, read and written, such as 0.5/1.5.")
@click.option("--retries", type=click.IntRange(0), default=2, show_default=True, help="Retries after infra failures.")
@click.option("--seed", type=int, help="Seed of the rollout.")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of tasks.")
@click.option("--score", help="Number that counts in a reward that is an object.")
@click.option("--baseline/--no-baseline", default=True, show_default=True, help="Run also an agent that does nothing.")
@click.option("--run", "run_id", help="Name of the run; an existing one is resumed.  [default: a new one]")
@click.option("--on", type=click.Choice(["ray"]), help="Spread the episodes over a Ray cluster (RAY_ADDRESS).")
@click.option("--store", type=click.Path(path_type=Path), help="Folder to record in.  [default: yours]")
@output_option
def command(
    environment: str, agent: str, tasks: str | None, samples: int, model: str | None, sampling: tuple[str, ...],
    user: str | None, simulate: str | None, reference: str | None, concurrency: str, max_steps: int | None,
    max_tokens: int | None, max_seconds: float | None, max_cost: float | None, price: str | None, retries: int,
    seed: int | None, limit: int | None, score: str | None, baseline: bool, run_id: str | None, on: str | None,
    store: Path | None, output: Output,
) -> int:  # fmt: skip
    """Run an agent over the tasks of ENVIRONMENT, and record every episode.

    Stop it with Ctrl-C; the same command with --run resumes it, and repeats nothing that has finished.
    """
    budgets = {"steps": max_steps, "tokens": max_tokens, "seconds": max_seconds, "cost": max_cost}
    common: dict[str, Any] = {
        "tasks": tasks, "limits": {name: value for name, value in budgets.items() if value is not None},
        "concurrency": int(concurrency) if concurrency.isdigit() else concurrency, "retries": retries, "seed": seed,
        "limit": limit, "score": score, "store": store, "simulate": simulate, "reference": reference,
    }  # fmt: skip
    main = {
        "agent": agent, "samples": samples, "model": model, "sampling": _sampling(sampling), "price": price_of(price),
        "run": run_id, "user": user,
    }  # fmt: skip
    return interrupts.run(_run_with_user(environment, common, main, baseline, output, on))


async def _run_with_user(
    environment: str, common: Mapping[str, Any], main: Mapping[str, Any], baseline: bool, output: Output, on: str | None
) -> int:
    """Run with the user that was named; a person in the console needs the console for so long."""
    if main["user"] != "console" or on == "ray":
        return await _run(environment, common, main, baseline, output, on)
    async with console_user() as user:
        return await _run(environment, common, {**main, "user": user}, baseline, output, on)


async def _run(
    environment: str,
    common: Mapping[str, Any],
    main: Mapping[str, Any],
    baseline: bool,
    output: Output,
    on: str | None = None,
) -> int:
    from aenv.rollout import rollout
    from aenv.trajectory import TrajectoryStore
    from aenv.trajectory.statistics import summarize

    given_store: Path | None = common["store"]
    with TrajectoryStore.open(given_store) as store:
        if given_store is None and chosen(None, None)[0] is not None:
            given_store = store.path  # 'aenv trajectory' would look at the platform
        common = {**common, "store": store, "simulate": await _simulation(environment, common, store)}
        del common["reference"]
        made = _on_ray(environment, common, main) if on == "ray" else rollout(environment, **common, **main)
        note(f"Run {made.run}")
        floor: dict[str, float] = {}
        try:
            results = await _results(made, show=main["user"] != "human")
            if main["agent"] == "nop":
                floor = _scores(results)
            elif baseline and any(result.score is not None and not _tells_floor(result) for result in results):
                idle = rollout(environment, **common, agent="nop", run=f"{made.run}-nop")
                floor = _scores(await _results(idle, "do nothing: "))
        except asyncio.CancelledError:
            note(f"Stopped. Resume it with the same command and --run {quote(made.run)}")
            raise
        statistics = summarize(store.all_episodes(made.run), do_nothing=floor)
    document = {"run": made.run, **statistics.as_json(), "results": [result.as_json() for result in results]}
    output.show(document, lambda: _table(statistics, results))
    note(f"See each episode with: aenv trajectory list --run {quote(made.run)}{_store_option(given_store)}")
    return 1 if any(result.outcome in ("env", "infra", "user") for result in results) else 0


def _on_ray(environment: str, common: Mapping[str, Any], main: Mapping[str, Any]) -> RayRollout:
    """Return the rollout on a Ray cluster. A path must name the same project on every node.

    Raises:
        UsageError: there is an option that it does not have.
    """
    from aenv.adapters.trainers.ray import RayRollout

    given = {**common, **main}
    for name in ("price", "user", "simulate"):
        if given.pop(name, None) is not None:
            raise UsageError(f"--{name} does not work with --on ray")
    folder = Path(environment).expanduser()
    return RayRollout(str(folder.resolve()) if folder.is_dir() else environment, **given)


async def _simulation(environment: str, common: Mapping[str, Any], store: TrajectoryStore) -> Simulation | None:
    """Return the simulation, measured by the real run that the caller names.

    Raises:
        UsageError: there is a run to measure by, but no simulation; or it has no episodes.
    """
    from aenv.rollout.simulation import find_simulation, measure_fidelity

    simulation, run = find_simulation(common["simulate"]), common["reference"]
    if run is None:
        return simulation
    if simulation is None:
        raise UsageError("--reference is for a simulation", {"hint": "Name it with --simulate."})
    episodes = [list(store.events(episode.id)) for episode in store.all_episodes(run) if episode.final]
    found = await measure_fidelity(environment, simulation, episodes)
    consistency = "" if found.consistency is None else f", consistency {found.consistency:.3f}"
    note(f"Fidelity {found.score:.3f} (format {found.format:.3f}, facts {found.facts:.3f}{consistency})")
    return simulation


def _scores(results: list[EpisodeResult]) -> dict[str, float]:
    """Return the score of each task that has one."""
    return {result.task: result.score for result in results if result.score is not None}


def _tells_floor(result: EpisodeResult) -> bool:
    """Return whether the reward itself tells what doing nothing gets, so that it need not be tried."""
    from aenv.trajectory.statistics import DO_NOTHING

    return isinstance(result.reward, Mapping) and DO_NOTHING in result.reward


async def _results(made: Rollout | RayRollout, prefix: str = "", *, show: bool = True) -> list[EpisodeResult]:
    """Run a rollout. ``show``: on a progress line, which a conversation in the terminal would be mixed with."""
    results = []
    line = ProgressLine(lambda: prefix + made.progress.line(), is_worth_keeping=lambda: made.progress.done > 0)
    async with line if show else nullcontext(), aclosing(made.results()) as found:
        async for result in found:
            results.append(result)
    return results


def _table(statistics: RunStatistics, results: list[EpisodeResult]) -> str:
    """Return outcomes with their mean reward and an example of their errors, then what they say about the agent."""
    rows = [("outcome", "episodes", "reward", "")]
    for outcome, count in sorted(statistics.outcomes.items(), key=lambda row: -row[1]):
        found = [result for result in results if result.outcome == outcome]
        scores = [result.score for result in found if result.score is not None]
        errors = [result.error.splitlines()[0][:100] for result in found if result.error]
        mean = sum(scores) / len(scores) if scores else None
        rows.append((outcome, str(count), _number(mean), errors[0] if errors else ""))
    return "\n".join([columns(rows), *_conclusions(statistics)])


def _conclusions(statistics: RunStatistics) -> Iterator[str]:
    reward = statistics.reward
    if reward is None:
        yield "no episode has a reward"
    else:
        limits = "" if reward.low is None else f" ({reward.low:.3f} to {reward.high:.3f} with 95 % confidence)"
        counted = f"{statistics.counted} episodes of {len(statistics.tasks)} tasks"
        yield f"mean reward {reward.mean:.3f}{limits} over {counted}"
    ks = [k for k in statistics.pass_at if k > 1]
    if ks:
        yield "  ".join(f"pass@{k} {statistics.pass_at[k]:.3f}  pass^{k} {statistics.pass_all[k]:.3f}" for k in ks)
    if statistics.do_nothing is not None:
        yield f"doing nothing gets {_number(statistics.do_nothing)} on the same tasks"
    elif reward is not None:
        yield "what doing nothing gets is not known for all of these tasks"
    if statistics.left_out:
        yield "not counted: " + ", ".join(f"{count} {reason}" for reason, count in statistics.left_out.items())


def _store_option(path: Path | None) -> str:
    return f" --store {quote(str(path))}" if path else ""


def _sampling(given: tuple[str, ...]) -> dict[str, Any]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"invalid sampling parameter {text!r}", {"hint": "Write it as NAME=VALUE."})
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def price_of(text: str | None) -> Any:
    """Return the price that an option names.

    Raises:
        UsageError: it is invalid.
    """
    from aenv.rollout import Price

    if text is None:
        return None
    read, _, written = text.partition("/")
    try:
        return Price(float(read), float(written or read))
    except ValueError:
        raise UsageError(f"invalid price {text!r}", {"hint": "Write it as IN/OUT, such as 0.5/1.5."}) from None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
