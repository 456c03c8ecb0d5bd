"""``aenv trajectory``: the commands, as a user runs them."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from aenv.cli.main import main
from aenv.trajectory import EpisodeKey, RunRecord, TrajectoryStore
from aenv.trajectory.difference import compare
from tests.trajectory.conftest import greet


def said(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    assert main(["trajectory", *args]) == code, capsys.readouterr().err
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> Any:
    return json.loads(said(capsys, *args, "-o", "json", code=code))


@pytest.mark.attack("terminal")
def test_no_part_of_an_episode_reaches_the_terminal_as_a_control_character(
    store: TrajectoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Roles come from requests of an agent, rewards from an environment."""
    escape = "\x1b[2J\x9b2J"
    ids = []
    for number in range(2):
        begin = {"environment": {"name": escape}, "agent": {"name": escape}, "model": {"name": escape}}
        recorder = store.record(EpisodeKey("demo", f"odd{escape}", number), begin)
        recorder.append("message", role=escape, content=escape, usage={"input_tokens": escape, "output_tokens": 1})
        recorder.append("call", of=escape, tool=escape, id=escape, arguments={escape: escape})
        recorder.append("result", id=escape, content=[{"type": escape, "mimeType": escape}], error=escape)
        recorder.append("message", role=f"{number}{escape}", content=escape)
        recorder.end("ok", escape, error=escape)
        ids.append(recorder.episode_id)
    for words in (["list"], ["list", "--runs"], ["show", ids[0]], ["show", "--full", ids[0]], ["stats"]):
        out = said(capsys, *words)
        assert not {"\x1b", "\x9b"} & set(out), words
    out = said(capsys, "diff", *ids, code=1)
    assert not {"\x1b", "\x9b"} & set(out)


def test_list_shows_the_newest_first_and_how_to_go_on(
    store: TrajectoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = [greet(store, sample, "Hello Ada", 1.0) for sample in range(5)]
    assert main(["trajectory", "list", "--limit", "2"]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["EPISODE", ids[4], ids[3]]
    assert f"--after {ids[3]}" in err
    assert [each["id"] for each in as_json(capsys, "list", "--after", ids[3])] == ids[2::-1]
    assert "greet" in out
    assert "hello-env@1.0.0" in out
    (run,) = as_json(capsys, "list", "--runs")
    assert (run["id"], run["episodes"]) == ("demo", {"ok": 5})
    assert "5 ok" in said(capsys, "list", "--runs")
    assert said(capsys, "list", "--outcome", "infra") == "no episodes\n"


def test_show_reads_like_a_conversation(store: TrajectoryStore, capsys: pytest.CaptureFixture[str]) -> None:
    id = greet(store, 0, "Hello Ada", 1.0)
    out = said(capsys, "show", id)
    lines = [line[8:].strip() for line in out.splitlines()]
    assert out.startswith(f'{id}  ok  reward {{"score": 1.0, "said": 1}}')
    at = lines.index("user       Greet the visitor.")
    assert lines[at + 1 :] == [
        "assistant  I ask first.  20+5 tokens",
        "→ ask_name()",
        "result     My name is Ada.  1.0 ms",
        'assistant  → say(text="Hello Ada")  40+7 tokens',
        "result     Hello to you, too!  1.0 ms",
        "reward     reward()",
        'result     {"score": 1.0, "said": 1}  1.0 ms',
        'end        ok, reward {"score": 1.0, "said": 1}',
    ]
    assert len(as_json(capsys, "show", id)["events"]) == 13
    assert {each["kind"] for each in as_json(capsys, "show", id, "--kind", "call")["events"]} == {"call"}


def test_show_is_safe_for_a_terminal_and_cuts_long_texts(
    store: TrajectoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = store.record(EpisodeKey("demo", "odd\x1b[2J"))
    recorder.append("message", role="user", content="\x1b]0;title\x07 " + "\n".join(f"line {n}" for n in range(40)))
    recorder.append("note", data={"x": 1}, text="a remark")
    recorder.append(
        "result", id="1", content=[{"type": "image", "data": "QUJD", "mimeType": "image/png"}], is_error=True
    )
    recorder.end("timeout", error="out of time")
    out = said(capsys, "show", recorder.episode_id)
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "29 more lines (--full)" in out
    assert "[image image/png, 4 characters]" in out
    assert "a remark" in out
    assert "line 39" in said(capsys, "show", recorder.episode_id, "--full")
    assert "\x1b" not in said(capsys, "list")


def test_diff_shows_where_two_episodes_part(store: TrajectoryStore, capsys: pytest.CaptureFixture[str]) -> None:
    one, two, same = (
        greet(store, n, w, s) for n, (w, s) in enumerate([("Hello Ada", 1.0), ("Go", 0.0), ("Hello Ada", 1.0)])
    )
    out = said(capsys, "diff", one, two, code=1)
    assert "6 events are the same" in out
    assert "They part at event 7 | 7 (in tool_calls)" in out
    assert '- assistant: → say(text="Hello Ada")\n+ assistant: → say(text="Go")' in out
    assert 'reward: {"score": 1.0, "said": 1}  |  {"score": 0.0, "said": 1}' in out
    found = as_json(capsys, "diff", one, two, code=1)
    assert found["parting"]["first"]["seq"] == 7
    assert "They do not part." in said(capsys, "diff", one, same)


def test_an_episode_that_goes_on_differs_from_one_that_is_over(store: TrajectoryStore) -> None:
    events = list(store.events(greet(store, 0, "Hello Ada", 1.0)))
    shorter = [*events[:8], events[-1]]
    found = compare(events, shorter)
    assert found.parting is not None
    assert found.parting.second is None
    assert found.parting.first == events[8]
    assert not found.equal


def test_stats_say_what_counts_and_what_was_left_out(
    store: TrajectoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    for sample in range(4):
        greet(store, sample, "Hello Ada", float(sample < 1))
    store.record(EpisodeKey("demo", "greet", 4)).end("infra", error="lost")
    out = said(capsys, "stats", "--run", "demo")
    assert "5, of which 4 count" in out
    assert "left out     1 infra" in out
    assert "mean reward  0.250" in out
    assert "do nothing   0.000" in out
    assert "@1 0.250  @2 0.500  @4 1.000" in out
    assert "+1.50 -0.50 -0.50 -0.50" in out
    found = as_json(capsys, "stats", "--run", "demo")
    assert (found["counted"], found["left_out"]) == (4, {"infra": 1})
    assert main(["trajectory", "stats", "--run", "none"]) == 1
    assert "no such run" in capsys.readouterr().err


def test_stats_are_those_of_the_newest_run_and_not_of_its_baseline(
    store: TrajectoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    for run, reward in (("old", 0.0), ("new", 1.0), ("new-nop", 0.0)):
        store.begin_run(RunRecord(run))
        store.record(EpisodeKey(run, "greet")).end("ok", reward)
    found = as_json(capsys, "stats")
    assert (found["counted"], found["reward"]["mean"], found["do_nothing"]) == (1, 1.0, 0.0)
    assert main(["trajectory", "stats"]) == 0
    assert "Run new\n" in capsys.readouterr().err


def test_tail_follows_an_episode_to_its_end(store: TrajectoryStore, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = store.record(EpisodeKey("demo", "slow"))
    recorder.append("note", text="first")
    assert store.episodes(task="slow")  # indexed, so that other processes see it
    seen = threading.Event()
    reader = store.events

    def events(*args: Any, **named: Any) -> Any:
        seen.set()
        return reader(*args, **named)

    def go_on() -> None:
        seen.wait(30)
        recorder.append("note", text="second")
        recorder.end("ok", 1.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrajectoryStore, "events", lambda self, *args, **named: events(*args, **named))
        worker = threading.Thread(target=go_on)
        worker.start()
        out = said(capsys, "tail")
        worker.join()
    assert out.index("first") < out.index("second") < out.index("ok, reward 1")


def test_prune_asks_first_and_removes(
    store: TrajectoryStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for sample in range(3):
        greet(store, sample, "Hello Ada", 1.0)
    assert main(["trajectory", "prune"]) == 2
    assert main(["trajectory", "prune", "--older-than", "soon", "--yes"]) == 2
    capsys.readouterr()
    assert as_json(capsys, "prune", "--run", "demo", "--dry-run")["episodes"] == 3
    assert as_json(capsys, "prune", "--older-than", "1h", "--yes")["episodes"] == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert main(["trajectory", "prune", "--all"]) == 130
    capsys.readouterr()
    assert as_json(capsys, "prune", "--all", "--yes")["episodes"] == 3
    assert said(capsys, "list") == "no episodes\n"


def test_an_episode_that_does_not_exist_is_an_error(store_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trajectory", "show", "ep-none"]) == 1
    assert "does not exist" in capsys.readouterr().err
    assert main(["trajectory", "tail"]) == 1
