"""Exports, read by the packages that they are for: harbor, inspect_ai and datasets, in an environment of their own."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aenv.trajectory import TrajectoryStore
from aenv.trajectory.formats.exchange import export, import_file
from tests.trajectory.conftest import greet
from tests.trajectory.test_formats import scripted

pytestmark = pytest.mark.long

READ = """
import json, sys
from pathlib import Path

folder = Path(sys.argv[1])
found = {}
if sys.argv[2] == "harbor":
    from harbor.models.trajectories import Trajectory

    documents = [Trajectory.model_validate_json(path.read_text()) for path in sorted(folder.glob("atif/*.json"))]
    found = {"versions": [each.schema_version for each in documents], "steps": [len(each.steps) for each in documents],
             "images": [each.has_multimodal_content() for each in documents]}
elif sys.argv[2] == "inspect":
    from inspect_ai.log import read_eval_log, write_eval_log

    log = read_eval_log(str(folder / "log.json"))
    write_eval_log(log, str(folder / "theirs.eval"))
    write_eval_log(log, str(folder / "theirs.json"))
    samples = sorted(log.samples, key=lambda each: (each.id, each.epoch))  # writing has sorted them in another way
    found = {"status": log.status, "scores": [each.scores["reward"].as_float() if each.scores else None
             for each in samples], "roles": [message.role for message in samples[0].messages],
             "error": samples[2].error.message, "mean": log.results.scores[0].metrics["mean"].value}
else:
    import datasets

    disk = datasets.load_from_disk(str(folder / "dataset"))
    found["disk"] = {"rows": len(disk), "call": disk[0]["messages"][2]["tool_calls"][0]["function"]["name"]}
    for name in ("verl", "trl", "areal"):
        rows = datasets.load_dataset("parquet", data_files=str(folder / f"{name}.parquet"))["train"]
        found[name] = rows.to_list()[0]
    chat = datasets.load_dataset("json", data_files=str(folder / "chat.jsonl"))["train"]
    found["chat"] = chat.to_list()[0]["messages"][1]["content"]
print(json.dumps(found))
"""


def a_python(at_least: tuple[int, int]) -> str | None:
    """Return a Python of this machine that is new enough."""
    if sys.version_info >= at_least:
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for minor in range(at_least[1], at_least[1] + 3):
        for found in [shutil.which(f"python3.{minor}"), *map(str, sorted(pyenv.glob(f"3.{minor}.*/bin/python")))]:
            if found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
                return found
    return None


def python_with(config: pytest.Config, package: str, at_least: tuple[int, int] = (3, 11)) -> Path:
    """Return the Python of an environment with a package, made once and kept in pytest's cache."""
    base = a_python(at_least)
    if base is None:
        pytest.skip(f"{package} needs Python {at_least[0]}.{at_least[1]}, and this machine has none")
    folder = (config.cache.mkdir("readers") if config.cache else Path("/tmp/aenv-readers")) / package
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:  # another process of this run may install it, too
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _make(folder, base, package)
    return folder / "bin" / "python"


def _make(folder: Path, base: str, package: str) -> None:
    uv = Path(sys.executable).with_name("uv")
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([uv, "venv", "--quiet", "--python", base, folder], check=True)
    install = [uv, "pip", "install", "--quiet", "--python", folder / "bin" / "python", package]
    done = subprocess.run(install, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        pytest.skip(f"{package} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    (folder / "complete").touch()


def read(python: Path, folder: Path, what: str) -> dict[str, object]:
    variables = {"PATH": os.environ["PATH"], "HOME": str(folder), "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
    done = subprocess.run(
        [python, "-c", READ, folder, what], env=variables, capture_output=True, text=True, timeout=110, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture
def episodes(store: TrajectoryStore) -> list[str]:
    return [greet(store, 0, "Hello Ada", 1.0), greet(store, 1, "Go", 0.0), scripted(store)]


@pytest.mark.timeout(700)
def test_harbor_accepts_every_document(
    store: TrajectoryStore, episodes: list[str], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    python = python_with(pytestconfig, "harbor", (3, 12))
    export(store, episodes, "atif", tmp_path / "atif")
    found = read(python, tmp_path, "harbor")
    assert found["versions"] == ["ATIF-v1.8"] * 3
    assert sorted(found["steps"]) == [3, 4, 4]  # type: ignore[call-overload]
    assert sorted(found["images"]) == [False, False, True]  # type: ignore[call-overload]


@pytest.mark.timeout(700)
def test_inspect_reads_our_log_and_we_read_its(
    store: TrajectoryStore, episodes: list[str], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    python = python_with(pytestconfig, "inspect-ai")
    export(store, episodes, "inspect", tmp_path / "log.json")
    found = read(python, tmp_path, "inspect")
    assert found == {
        "status": "success", "scores": [1.0, 0.0, None], "error": "lost", "mean": 0.5,
        "roles": ["system", "user", "assistant", "tool", "assistant", "tool"],
    }  # fmt: skip
    with TrajectoryStore.open(tmp_path / "back") as other:
        back = [other.episode(id) for id in import_file(other, tmp_path / "theirs.json", "inspect")]
        assert {(each.task, each.sample, each.outcome, each.score) for each in back} == {
            ("greet", 0, "ok", 1.0), ("greet", 1, "ok", 0.0), ("script", 0, "infra", None),
        }  # fmt: skip


@pytest.mark.timeout(700)
def test_datasets_reads_folders_parquet_and_lines(
    store: TrajectoryStore, episodes: list[str], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """verl, TRL and AReaL read their files with this package."""
    python = python_with(pytestconfig, "datasets")
    export(store, episodes, "datasets", tmp_path / "dataset")
    export(store, episodes, "openai", tmp_path / "chat.jsonl")
    for name in ("verl", "trl", "areal"):
        export(store, episodes, name, tmp_path / f"{name}.parquet")
    found = read(python, tmp_path, "datasets")
    assert found["disk"] == {"rows": 3, "call": "ask_name"}
    assert found["chat"] == "Greet the visitor."
    assert found["verl"]["reward_model"]["style"] == "rule"  # type: ignore[call-overload,index]
    assert found["trl"]["completion"][0]["content"] == "I ask first."  # type: ignore[call-overload,index]
    assert found["areal"]["loss_mask"] == [0, 0, 0, 1, 1, 0, 1]  # type: ignore[call-overload,index]
