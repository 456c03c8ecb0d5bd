"""Exports hold what was recorded, and imports bring it back."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from aenv.cli.main import main
from aenv.errors import UsageError
from aenv.trajectory import EpisodeKey, TrajectoryStore
from aenv.trajectory.formats.atif import from_atif, to_atif
from aenv.trajectory.formats.conversation import conversation, numbers
from aenv.trajectory.formats.exchange import FORMATS, export, import_file
from aenv.trajectory.formats.training import token_sequences
from tests.trajectory.conftest import greet, tool_call


def scripted(store: TrajectoryStore, sample: int = 0) -> str:
    """Record an episode without a model: calls, of which one gave an image and one failed; then the machine failed."""
    recorder = store.record(EpisodeKey("demo", "script", sample), {"task": {"instruction": "Look."}})
    recorder.append("call", id="1", of="tool", tool="look", arguments={"at": "door"})
    image = {"type": "image", "data": "QUJD", "mimeType": "image/png"}
    recorder.append("result", id="1", content=[image, {"type": "text", "text": "a door"}], is_error=False)
    recorder.append("call", id="2", of="tool", tool="go", arguments="not json")
    recorder.append("result", id="2", content=[], is_error=True, error="bad arguments", fault="policy")
    recorder.end("infra", error="lost")
    return recorder.episode_id


def document(store: TrajectoryStore, id: str) -> dict[str, Any]:
    return to_atif(store.episode(id), store.events(id))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- conversations


def test_a_conversation_is_what_the_model_saw_at_last(store: TrajectoryStore) -> None:
    recorder = store.record(EpisodeKey("demo", "long"))
    for role, text in [("system", "s"), ("user", "u"), ("assistant", "a1"), ("user", "u2"), ("assistant", "a2")]:
        recorder.append("message", role=role, content=text)
    recorder.append("note", data={"context_kept": 2})
    recorder.append("message", role="user", content="a summary")
    recorder.append("message", role="user", content="u2")
    recorder.append("message", role="assistant", content="a3")
    recorder.end("ok", 1.0)
    events = list(store.events(recorder.episode_id))
    assert [turn.content for turn in conversation(events).turns] == ["s", "u", "a summary", "u2", "a3"]
    everything = conversation(events, whole=True).turns
    assert [turn.content for turn in everything] == ["s", "u", "a1", "u2", "a2", "a summary", "u2", "a3"]
    assert [turn.content for turn in everything if turn.copied] == ["u2"]


def test_calls_that_no_message_mentions_are_part_of_the_conversation(store: TrajectoryStore) -> None:
    turns = conversation(store.events(scripted(store))).turns
    assert [turn.role for turn in turns] == ["user", "assistant", "tool", "assistant", "tool"]
    assert turns[1].calls[0].name == "look"
    assert turns[4].text == "bad arguments"


def test_log_probabilities_are_numbers_or_nothing() -> None:
    assert numbers([-0.5, -1]) == [-0.5, -1.0]
    assert numbers({"content": [{"token": "a", "logprob": -0.5}]}) == [-0.5]
    assert numbers(["x"]) is None
    assert numbers(None) is None


def test_requests_that_continue_each_other_are_one_token_sequence(store: TrajectoryStore) -> None:
    (tokens,) = token_sequences(conversation(store.events(greet(store, 0, "Hello Ada", 1.0))).turns)
    assert tokens.input_ids == [1, 2, 3, 4, 5, 6, 7]
    assert tokens.loss_mask == [0, 0, 0, 1, 1, 0, 1]
    assert tokens.logprobs == [0.0, 0.0, 0.0, -0.1, -0.2, 0.0, -0.3]
    recorder = store.record(EpisodeKey("demo", "two"))
    for prompt in ([1, 2], [9, 9]):
        recorder.append("message", role="assistant", content="x", prompt_token_ids=prompt, token_ids=[3])
    recorder.end("ok", 1.0)
    found = token_sequences(conversation(store.events(recorder.episode_id)).turns)
    assert [each.input_ids for each in found] == [[1, 2, 3], [9, 9, 3]]


# --- ATIF


def test_an_atif_document_has_steps_from_one_with_their_observations(store: TrajectoryStore) -> None:
    found = document(store, greet(store, 0, "Hello Ada", 1.0))
    assert found["schema_version"] == "ATIF-v1.8"
    assert [step["step_id"] for step in found["steps"]] == [1, 2, 3, 4]
    assert [step["source"] for step in found["steps"]] == ["system", "user", "agent", "agent"]
    first = found["steps"][2]
    assert first["tool_calls"] == [{"tool_call_id": "c1", "function_name": "ask_name", "arguments": {}}]
    (result,) = first["observation"]["results"]
    assert (result["source_call_id"], result["content"]) == ("c1", "My name is Ada.")
    assert first["metrics"] == {
        "prompt_tokens": 20, "completion_tokens": 5, "prompt_token_ids": [1, 2, 3], "completion_token_ids": [4, 5],
        "logprobs": [-0.1, -0.2],
    }  # fmt: skip
    assert found["final_metrics"]["total_cost_usd"] == 0.01
    assert found["extra"]["aenv"]["reward"] == {"score": 1.0, "said": 1}


def test_an_episode_without_a_model_is_a_document_too(store: TrajectoryStore) -> None:
    found = document(store, scripted(store))
    assert [step.get("llm_call_count") for step in found["steps"]] == [None, 0, 0]
    image = found["steps"][1]["observation"]["results"][0]["content"][0]
    assert image["source"] == {"media_type": "image/png", "path": "data:image/png;base64,QUJD"}
    assert found["steps"][2]["tool_calls"][0]["arguments"] == {"text": "not json"}
    assert "reward" not in found["extra"]["aenv"]


def test_what_was_exported_as_atif_comes_back(store: TrajectoryStore, tmp_path: Path) -> None:
    ids = [greet(store, 0, "Hello Ada", 1.0), scripted(store)]
    assert export(store, ids, "atif", tmp_path / "documents") == 2
    with TrajectoryStore.open(tmp_path / "other") as other:
        back = {each.split("/")[-1]: each for each in import_file(other, tmp_path / "documents", "atif")}
        found = {each.task: each for each in other.all_episodes()}
        assert len(back) == 2
        assert (found["greet"].reward, found["greet"].run) == ({"score": 1.0, "said": 1}, "demo")
        assert found["greet"].steps == 2
        assert (found["script"].outcome, found["script"].reward, found["script"].error) == ("infra", None, "lost")
        for id in ids:
            summary = store.episode(id)
            one, two = document(store, id), document(other, found[summary.task].id)
            assert [_comparable(step) for step in two["steps"]] == [_comparable(step) for step in one["steps"]]


def _comparable(step: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in step.items() if name not in ("timestamp", "extra")}


def test_documents_of_others_are_imported_and_other_files_are_refused(store: TrajectoryStore, tmp_path: Path) -> None:
    theirs = {
        "schema_version": "ATIF-v1.4",
        "session_id": "s1",
        "agent": {"name": "terminus-2", "version": "2.0", "model_name": "m"},
        "steps": [
            {"step_id": 1, "source": "user", "message": "Do it.", "timestamp": "2026-01-01T00:00:00Z"},
            {"step_id": 2, "source": "agent", "message": "ls", "observation": {"results": [{"content": "a b"}]}},
        ],
        "subagent_trajectories": [
            {"schema_version": "ATIF-v1.8", "trajectory_id": "sub", "agent": {"name": "x", "version": "1"},
             "steps": [{"step_id": 1, "source": "user", "message": "hi"}]},
        ],
    }  # fmt: skip
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "trajectory.json").write_text(json.dumps(theirs))
    (tmp_path / "job" / "result.json").write_text('{"reward": 1}')
    ids = import_file(store, tmp_path / "job", "atif", "theirs")
    summary, subagent = [store.episode(id) for id in ids]
    assert (summary.task, subagent.task, subagent.final) == ("s1", "sub", False)
    assert (summary.parents, subagent.parents) == ((), ({"kind": "subagent", "episode": summary.id},))
    assert (summary.outcome, summary.reward, summary.agent["name"], summary.began) == (
        "ok",
        None,
        "terminus-2",
        1767225600,
    )
    assert [turn.text for turn in conversation(store.events(ids[0])).turns] == ["Do it.", "ls", "a b"]
    with pytest.raises(UsageError, match="not an ATIF document"):
        from_atif({"steps": []})
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(UsageError, match="not JSON"):
        import_file(store, tmp_path / "x.json", "atif")


# --- chats


def test_messages_and_conversations_are_one_object_per_line(store: TrajectoryStore, tmp_path: Path) -> None:
    ids = [greet(store, 0, "Hello Ada", 1.0), scripted(store)]
    export(store, ids, "openai", tmp_path / "a.jsonl")
    chat, _ = lines(tmp_path / "a.jsonl")
    assert [each["role"] for each in chat["messages"]] == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert chat["messages"][2]["tool_calls"] == [tool_call("ask_name", "c1", "{}")]
    assert chat["messages"][5] == {"role": "tool", "content": "Hello to you, too!", "tool_call_id": "c2"}
    assert (chat["reward"], chat["episode"]) == (1.0, ids[0])
    export(store, ids, "sharegpt", tmp_path / "b.jsonl")
    chat, other = lines(tmp_path / "b.jsonl")
    assert [each["from"] for each in chat["conversations"]] == [
        "system", "human", "gpt", "function_call", "observation", "function_call", "observation",
    ]  # fmt: skip
    assert json.loads(chat["conversations"][5]["value"]) == {"name": "say", "arguments": {"text": "Hello Ada"}}
    assert other["reward"] is None


# --- rows


def test_parquet_files_have_the_columns_that_trainers_read(store: TrajectoryStore, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    ids = [greet(store, 0, "Hello Ada", 1.0), scripted(store)]
    rows = {}
    for name in ("verl", "trl", "areal"):
        assert export(store, ids, name, tmp_path / f"{name}.parquet") == 2
        rows[name] = pq.read_table(tmp_path / f"{name}.parquet").to_pylist()
    verl = rows["verl"][0]
    assert verl["prompt"] == [
        {"role": "system", "content": "Use the tools."},
        {"role": "user", "content": "Greet the visitor."},
    ]
    assert (verl["data_source"], verl["extra_info"]["index"], verl["reward"]) == ("hello-env", 0, 1.0)
    trl = rows["trl"][0]
    assert [each["role"] for each in trl["completion"]] == ["assistant", "tool", "assistant", "tool"]
    assert rows["areal"][0]["input_ids"] == [1, 2, 3, 4, 5, 6, 7]
    assert rows["areal"][1]["input_ids"] == []
    assert [row["reward"] for row in rows["trl"]] == [1.0, None]


# --- inspect


def test_what_was_exported_as_a_log_comes_back(store: TrajectoryStore, tmp_path: Path) -> None:
    ids = [greet(store, 0, "Hello Ada", 1.0), greet(store, 1, "Go", 0.0), scripted(store)]
    assert export(store, ids, "inspect", tmp_path / "log.json") == 3
    log = json.loads((tmp_path / "log.json").read_text())
    assert [(each["id"], each["epoch"]) for each in log["samples"]] == [("greet", 1), ("greet", 2), ("script", 1)]
    assert log["samples"][2]["error"]["message"] == "lost"
    assert "scores" not in log["samples"][2]
    assert log["results"]["scores"][0]["metrics"]["mean"]["value"] == 0.5
    with zipfile.ZipFile(tmp_path / "log.eval", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", json.dumps({k: v for k, v in log.items() if k != "samples"}))
        for each in log["samples"]:
            archive.writestr(f"samples/{each['id']}_epoch_{each['epoch']}.json", json.dumps(each))
    for name in ("log.json", "log.eval"):
        with TrajectoryStore.open(tmp_path / f"store-{name}") as other:
            back = [other.episode(id) for id in import_file(other, tmp_path / name, "inspect")]
            assert [(each.task, each.sample, each.outcome, each.score) for each in back] == [
                ("greet", 0, "ok", 1.0), ("greet", 1, "ok", 0.0), ("script", 0, "infra", None),
            ]  # fmt: skip
            assert back[0].reward == {"score": 1.0, "said": 1}
            assert back[0].tokens == {"input": 60, "output": 12}
            before, after = (conversation(s.events(id)).turns for s, id in ((store, ids[0]), (other, back[0].id)))
            assert [(turn.role, turn.text, turn.calls) for turn in after] == [
                (turn.role, turn.text, turn.calls) for turn in before
            ]


def test_scores_of_others_become_rewards(store: TrajectoryStore, tmp_path: Path) -> None:
    samples = [
        {"id": n, "epoch": 1, "input": "q", "target": "t", "messages": [], **more}
        for n, more in enumerate(
            [{"scores": {"s": {"value": "C"}}}, {"scores": {"s": {"value": 0.25}}}, {"scores": {"s": {"value": "N/A"}}},
             {"error": {"message": "boom"}}, {"limit": {"type": "token", "limit": 5}, "scores": {"s": {"value": "I"}}}]
        )
    ]  # fmt: skip
    (tmp_path / "log.json").write_text(json.dumps({"eval": {"task": "quiz", "model": "m"}, "samples": samples}))
    back = [store.episode(id) for id in import_file(store, tmp_path / "log.json", "inspect")]
    assert [(each.outcome, each.score) for each in back] == [
        ("ok", 1.0), ("ok", 0.25), ("ok", None), ("infra", None), ("timeout", 0.0),
    ]  # fmt: skip
    assert back[0].run == "import-log"
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(UsageError, match="not a log"):
        import_file(store, tmp_path / "other.json", "inspect")


# --- the commands


def test_export_and_import_by_command(
    store: TrajectoryStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = greet(store, 0, "Hello Ada", 1.0), greet(store, 1, "Go", 0.0)
    recorder = store.record(EpisodeKey("demo", "greet", 2))
    recorder.end("infra", final=False)
    target = str(tmp_path / "out.jsonl")
    assert main(["trajectory", "export", target, "-f", "events", "--run", "demo"]) == 0
    assert "wrote 2" in capsys.readouterr().out
    assert main(["trajectory", "export", target, "-f", "openai", "--min-reward", "0.5"]) == 0
    assert [each["episode"] for each in lines(Path(target))] == [one]
    assert main(["trajectory", "export", target, "-f", "events", "--episode", two]) == 0
    assert main(["trajectory", "export", str(tmp_path / "a.json"), "-f", "atif"]) == 2
    assert "one episode" in capsys.readouterr().err
    assert main(["trajectory", "export", str(tmp_path / "log.txt"), "-f", "inspect"]) == 2
    other = str(tmp_path / "other")
    assert main(["trajectory", "import", target, "-f", "events", "--store", other]) == 0
    with TrajectoryStore.open(tmp_path / "other") as elsewhere:
        (back,) = elsewhere.all_episodes()
        mine, theirs = (
            [{k: v for k, v in event.items() if k != "episode"} for event in s.events(id)]
            for s, id in ((store, two), (elsewhere, back.id))
        )
        assert theirs[0].pop("imported")
        assert theirs == mine


def test_every_format_writes_an_empty_export(store: TrajectoryStore, tmp_path: Path) -> None:
    for name in FORMATS:
        assert export(store, [], name, tmp_path / f"{name}.json") == 0


@pytest.mark.attack("trajectory")
def test_an_imported_episode_names_no_folder_that_its_replay_would_mount(
    store: TrajectoryStore, tmp_path: Path
) -> None:
    recorder = store.record(EpisodeKey("demo", "a"), {"task": {"datasource": "/home/ann/.ssh", "instruction": "x"}})
    recorder.end("ok", 1.0)
    export(store, [recorder.episode_id], "events", tmp_path / "events.jsonl")
    [id] = import_file(store, tmp_path / "events.jsonl", "events", "imported")
    assert next(store.events(id))["task"] == {"id": "a", "instruction": "x"}
