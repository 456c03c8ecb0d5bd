from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aenv.client import local_lease
from aenv.trajectory import EpisodeKey, RunRecord, TrajectoryStore
from tests.conftest import left_in, stop_all


@pytest.fixture
def store_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's store, in a folder of this test."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path / "data" / "aenv" / "trajectories"


@pytest.fixture(scope="module")
def runtime(sandboxes: None) -> Iterator[Path]:
    """Runtime folder of a local platform for this module, started by the first Environment."""
    with tempfile.TemporaryDirectory(prefix="aenv-t-", dir="/tmp", ignore_cleanup_errors=True) as name:
        yield Path(name)
        stop_all(Path(name))
        assert not left_in(Path(name))


@pytest.fixture
def platform(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AENV_RUNTIME_DIR", str(runtime))
    held = local_lease.lease()
    if held is not None and held.where != local_lease.LocalPaths(runtime):
        held.close()


def tool_call(name: str, id: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def greet(store: TrajectoryStore, sample: int, words: str, score: float, *, run: str = "demo") -> str:
    """Record an episode as a model's loop would in hello-env: two tool calls and a reward."""
    recorder = store.record(
        EpisodeKey(run, "greet", sample),
        {
            "environment": {"name": "hello-env", "version": "1.0.0"},
            "agent": {"name": "loop", "version": "1"},
            "model": "scripted",
            "sampling": {"temperature": 1.0},
            "task": {"instruction": "Greet the visitor.", "variables": {"VISITOR": "Ada"}},
        },
    )
    recorder.append("message", role="system", content="Use the tools.")
    recorder.append("message", role="user", content="Greet the visitor.")
    recorder.append(
        "message", role="assistant", content="I ask first.", tool_calls=[tool_call("ask_name", "c1", "{}")],
        usage={"input_tokens": 20, "output_tokens": 5}, prompt_token_ids=[1, 2, 3], token_ids=[4, 5],
        logprobs=[-0.1, -0.2], model="scripted", finish_reason="tool_calls", seconds=0.5,
    )  # fmt: skip
    recorder.append("call", id="c1", of="tool", tool="ask_name", arguments={})
    recorder.append(
        "result", id="c1", content=[{"type": "text", "text": "My name is Ada."}], is_error=False, seconds=0.001
    )
    recorder.append("message", role="tool", tool_call_id="c1", content="My name is Ada.")
    recorder.append(
        "message", role="assistant", content=None, tool_calls=[tool_call("say", "c2", f'{{"text": "{words}"}}')],
        usage={"input_tokens": 40, "output_tokens": 7}, prompt_token_ids=[1, 2, 3, 4, 5, 6], token_ids=[7],
        logprobs=[-0.3],
    )  # fmt: skip
    recorder.append("call", id="c2", of="tool", tool="say", arguments={"text": words})
    answer = "Hello to you, too!" if score else "Have we met?"
    recorder.append("result", id="c2", content=[{"type": "text", "text": answer}], is_error=False, seconds=0.001)
    recorder.append("call", id="reward", of="reward", reward=None, arguments={})
    reward = {"score": score, "said": 1}
    recorder.append("result", id="reward", content=[], structured=reward, is_error=False, seconds=0.001)
    recorder.end("ok", reward, cost=0.01)
    return recorder.episode_id


@pytest.fixture
def store(store_path: Path) -> Iterator[TrajectoryStore]:
    with TrajectoryStore.open() as store:
        store.begin_run(RunRecord("demo", "a demonstration", {"do_nothing": {"greet": 0.0}}))
        yield store
