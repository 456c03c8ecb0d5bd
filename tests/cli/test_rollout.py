"""``aenv tasks`` and ``aenv rollout``, as a user calls them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from aenv.cli.main import main
from aenv.rollout import endpoint
from tests.isolation.host import Platform, own_platform

SHOP = str(Path(__file__).parents[1] / "rollout" / "shop")


@pytest.fixture(scope="module")
def _platform(sandboxes: None) -> Iterator[Platform]:
    with own_platform() as started:
        yield started


@pytest.fixture(autouse=True)
def _variables(_platform: Platform, _no_settings_from_outside: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in _platform.variables.items():
        monkeypatch.setenv(name, value)


def test_tasks_are_listed_without_their_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "list", SHOP, "--limit", "1", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"id": "apples-1", "instruction": "Buy 1 apples."}]
    assert main(["tasks", "list", f"{SHOP}?count=2"]) == 0
    assert capsys.readouterr().out.split()[3:] == ["apples-1", "Buy", "1", "apples.", "apples-2", "Buy", "2", "apples."]


def test_a_task_is_shown_with_its_answers_only_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "show", SHOP, "apples-2"]) == 0
    shown = capsys.readouterr().out
    assert "Buy 2 apples." in shown
    assert "wanted" not in shown
    assert main(["tasks", "show", SHOP, "apples-2", "--hidden", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["reward"]["arguments"] == {"wanted": {"apple": 2}}
    assert main(["tasks", "show", SHOP, "pears"]) == 2


def test_tasks_of_a_file_are_listed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"id": "a", "prompt": "p", "answer": 1}\n')
    assert main(["tasks", "list", str(tmp_path / "t.jsonl"), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"id": "a", "instruction": "p"}]
    (tmp_path / "bad.jsonl").write_text('{"id": ""}\n')
    assert main(["tasks", "list", str(tmp_path / "bad.jsonl")]) == 2
    assert "row 1 is not a task: id:" in capsys.readouterr().err


def test_a_rollout_that_fails_at_once_says_why(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "PATIENCE", 0.0)
    model = "chat:m@http://127.0.0.1:1/v1"
    assert main(["rollout", SHOP, "--model", model, "--samples", "2", "--store", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "no model answers at http://127.0.0.1:1/v1" in said
    assert "Is the model's server running" in said
    assert " done" not in said


def test_a_rollout_shows_outcomes_and_the_score_of_doing_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = ["rollout", SHOP, "--agent", "gold", "--samples", "2", "--store", str(tmp_path)]
    assert main(given) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[1].split() == ["ok", "8", "1.000"]
    assert "mean reward 1.000 (" in shown.out
    assert "pass@2 1.000  pass^2 1.000" in shown.out
    assert "doing nothing gets 0.000 on the same tasks" in shown.out
    assert "8/8 done" in shown.err


def test_without_a_baseline_the_score_of_doing_nothing_is_said_to_be_unknown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = ["rollout", SHOP, "--limit", "1", "--store", str(tmp_path)]
    assert main([*given, "--agent", "gold", "--no-baseline"]) == 0
    assert "what doing nothing gets is not known" in capsys.readouterr().out
    assert main([*given, "--agent", "nop"]) == 0
    assert "doing nothing gets 0.000 on the same tasks" in capsys.readouterr().out


def test_a_scripted_model_and_budgets_come_from_options(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "from aenv.testing import calls\n"
        "def answer(messages, tools):\n"
        "    return calls(('add_to_cart', {'item': 'apple'}))\n"
    )
    given = ["rollout", SHOP, "--model", f"{tmp_path}/model.py:answer", "--max-steps", "2", "--limit", "2"]
    assert main([*given, "--store", str(tmp_path / "store"), "--run", "r", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["outcomes"] == {"timeout": 2}
    assert {result["task"]: result["reward"] for result in found["results"]} == {"apples-1": 0.0, "apples-2": 1.0}


def test_an_episode_without_a_reward_makes_the_exit_code_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"id": "a", "setup": {"function": "start", "arguments": {"fails": true}}}\n')
    given = ["rollout", SHOP, "--agent", "nop", "--tasks", str(tmp_path / "t.jsonl"), "--store", str(tmp_path)]
    assert main(given) == 1
    shown = capsys.readouterr().out
    assert "no shop today" in shown
    assert "not counted: 1 env" in shown


@pytest.mark.parametrize(
    "wrong", [["--price", "cheap"], ["--sampling", "hot"], ["--concurrency", "many"], ["--agent", "nobody-knows"]]
)
def test_wrong_options_are_refused(wrong: list[str]) -> None:
    assert main(["rollout", SHOP, *wrong]) == 2
