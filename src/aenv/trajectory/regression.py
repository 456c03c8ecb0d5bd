"""A pytest file that replays an episode: a recorded trajectory as a regression test of its environment."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from aenv.errors import UsageError
from aenv.trajectory.events import EpisodeSummary, Event, encode
from aenv.trajectory.replay import ReplayReport, environment_of, replay

LONGEST_REWARD = 200
"""Characters that are shown of a reward that is the recorded one."""
_FILE = '''"""{title}

Recorded episode {episode}. Written by `aenv trajectory to-test`; the events are in {data}.
"""

from pathlib import Path

from {module} import check_replay

{kind} = {expression}
IGNORED: list[str] = {ignored!r}  # regular expressions: what they match in results is not compared


def test_{name}_replays_to_the_recorded_results_and_reward() -> None:
    check_replay(Path(__file__).with_name({data!r}), {kind}, ignore=IGNORED)
'''


def write_test(
    target: Path,
    summary: EpisodeSummary,
    events: Iterable[Event],
    *,
    environment: str | None = None,
    tasks: str | None = None,
    ignore: Sequence[str] = (),
) -> list[Path]:
    """Write a pytest file and the events that it replays beside it; return both paths.

    Args:
        target: The file.
        summary: The episode.
        events: Its events.
        environment: Environment to replay in; by default the recorded one.
        tasks: Set of tasks that opens the instance instead, as `aenv rollout` takes it.
        ignore: See `replay`.

    Raises:
        UsageError: the episode has not ended, or names no environment.
    """
    kept = [event for event in events if event["kind"] in ("begin", "call", "result", "end")]
    if not kept or kept[-1]["kind"] != "end":
        raise UsageError(f"episode {summary.id} has not ended; there is no reward to test")
    source = tasks or environment or environment_of(kept[0])
    data = target.with_suffix(".jsonl")
    target.parent.mkdir(parents=True, exist_ok=True)
    data.write_text("".join(f"{encode(event)}\n" for event in kept), encoding="utf-8")
    name = re.sub(r"[^A-Za-z0-9_]+", "_", summary.task).strip("_").lower() or "episode"
    title = f"Task {summary.task} of {source}, replayed.".replace('"""', "'''").replace("\\", "/").replace("\0", " ")
    text = _FILE.format(
        title=title,
        episode=summary.id,
        data=data.name,
        module="aenv.rollout.replays" if tasks else "aenv.trajectory.regression",
        kind="TASKS" if tasks else "ENVIRONMENT",
        expression=_path_expression(source, target),
        ignored=list(ignore),
        name=name,
    )
    target.write_text(text, encoding="utf-8")
    return [target, data]


def _path_expression(source: str, target: Path) -> str:
    """Return Python code for the environment or tasks of a test.

    A folder or file that the test lies in or beside is found from the test, so that both can be moved together.
    """
    path = Path(source)
    if not path.is_absolute() or not path.exists():
        return repr(source)
    folder, beside = target.resolve().parent, (path if path.is_dir() else path.parent).parent
    if not folder.is_relative_to(beside) or beside == Path(beside.anchor):
        return repr(source)
    return f"str((Path(__file__).parent / {os.path.relpath(path.resolve(), folder)!r}).resolve())"


def check_replay(path: Path, environment: str | None = None, *, ignore: Sequence[str] = ()) -> ReplayReport:
    """Replay the events in a file and compare them.

    Raises:
        AssertionError: a result or the reward is another one; the message shows the first difference.
    """
    import asyncio

    return equal(asyncio.run(replay(recorded(path), environment, ignore=ignore)))


def recorded(path: Path) -> list[Event]:
    """Return the events in a file."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def equal(report: ReplayReport) -> ReplayReport:
    """Return the report of a replay without differences.

    Raises:
        AssertionError: there are some; the message shows the first.
    """
    if not report.equal:
        raise AssertionError("\n".join(["the episode does not replay:", *described(report)]))
    return report


def described(report: ReplayReport) -> list[str]:
    """Return lines that say what a replay found."""
    lines = [f"{report.calls} calls in {report.environment}, {report.compared} results compared"]
    first = report.first
    if first is None:
        lines.append("all results are the recorded ones")
    else:
        lines += [
            f"{report.different} results differ; the first is event {first.seq}, {first.call}, in {first.field}:",
            f"  arguments  {json.dumps(first.arguments, ensure_ascii=False)}",
            f"  recorded   {json.dumps(first.recorded, ensure_ascii=False)}",
            f"  replayed   {json.dumps(first.replayed, ensure_ascii=False)}",
        ]
    if report.graded:
        same = "the recorded one" if report.same_reward else f"recorded {json.dumps(report.recorded_reward)}"
        reward = json.dumps(report.reward)
        if report.same_reward and len(reward) > LONGEST_REWARD:
            reward = f"{reward[:LONGEST_REWARD]}..."
        lines.append(f"reward {reward}: {same}")
    else:
        lines.append("no reward was recorded")
    return [*lines, *(f"note: {note}" for note in report.notes)]
