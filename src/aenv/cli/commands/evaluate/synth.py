"""``aenv synth``: make a dataset of tasks for an environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aenv.cli import interrupts
from aenv.cli.commands.evaluate.rollout import price_of
from aenv.cli.output import Output, columns, note, output_option
from aenv.cli.rollout_progress import ProgressLine

if TYPE_CHECKING:
    from aenv.rollout.synthesis import Synthesis


@click.command(name="synth")
@click.argument("environment")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder of the dataset.")
@click.option("--count", type=click.IntRange(1), default=200, show_default=True, help="Tasks to make.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of all random choices.")
@click.option("--tasks", help="Tasks to start from, as for 'aenv rollout'.  [default: those of the environment]")
@click.option("--starts", type=click.IntRange(1), default=4, show_default=True, help="Maximum of different starts.")
@click.option("--examples", type=click.Path(path_type=Path, exists=True), help="JSONL file of calls that make sense.")
@click.option("--exclude", multiple=True, metavar="TOOL", help="Tool or function not to call; may be repeated.")
@click.option("--length", type=click.IntRange(1), default=5, show_default=True, help="Maximum of calls in a task.")
@click.option("--reward", help="Reward that grades the tasks: its name, or JSON.  [default: graded by state]")
@click.option("--model", help="Model that proposes tasks and votes on them, as for 'aenv rollout'.")
@click.option("--price", metavar="IN/OUT", help="Price of a million tokens, read and written, such as 0.5/1.5.")
@click.option("--committee", type=click.IntRange(0), default=3, show_default=True, help="Votes of the model on a task.")
@click.option("--solver", multiple=True, metavar="AGENT", help="Agent that attempts the tasks; may be repeated.")
@click.option("--concurrency", type=click.IntRange(1), default=4, show_default=True, help="Instances at a time.")
@output_option
def command(
    environment: str, out: Path, price: str | None, exclude: tuple[str, ...], solver: tuple[str, ...],
    output: Output, **given: Any,
) -> int:  # fmt: skip
    """Make tasks for ENVIRONMENT from its tools, state and examples, check them, and write them as a dataset.

    Stop it with Ctrl-C; the same command goes on where it was.
    """
    from aenv.rollout.synthesis import Synthesis

    made = Synthesis(environment, out, price=price_of(price), exclude=exclude, solvers=solver, **given)
    summary = interrupts.run(_run(made))
    output.show(summary, lambda: _table(summary))
    note(f"Run them with: aenv rollout {environment} --tasks {out / 'tasks.jsonl'}")
    return 0 if summary["tasks"] >= summary["wanted"] else 1


async def _run(made: Synthesis) -> dict[str, Any]:
    async with ProgressLine(lambda: made.progress.line()):
        return await made.run()


def _table(summary: dict[str, Any]) -> str:
    rows = [("tool", "tasks"), *((tool, str(count)) for tool, count in summary["tools"].items())]
    rejected = ", ".join(f"{count} {reason}" for reason, count in summary["rejected"].items()) or "none"
    return "\n".join([
        columns(rows),
        f"{summary['tasks']} of {summary['wanted']} tasks, {summary['shapes']} shapes of calls, "
        f"{len(summary['tools'])} tools, {summary['proposals']} proposals",
        f"rejected: {rejected}",
    ])  # fmt: skip
