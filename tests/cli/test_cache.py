"""``aenv cache``."""

import json
import os
import subprocess
import time

import pytest

from aenv.isolation.files.scratch_folders import scratch_folder
from aenv.platform.operations import cache_budget
from aenv.platform.operations.host_audit import HostAudit


@pytest.fixture
def run(aenv, tmp_path):
    def run(*args, code=0):
        variables = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_DATA_HOME": str(tmp_path / "data")}
        done = aenv("cache", *args, env=variables)
        assert done.returncode == code, done.stderr
        return done

    return run


def make(tmp_path, place, name, age):
    entry = tmp_path / place / name
    entry.mkdir(parents=True)
    (entry / "file").write_bytes(os.urandom(50_000))
    os.utime(entry, (time.time() - age,) * 2)
    return entry


def test_an_empty_cache_says_so(run):
    assert run("ls").stdout == "nothing is kept\n"
    assert json.loads(run("ls", "-o", "json").stdout)["entries"] == []


def test_entries_of_all_kinds_are_listed(run, tmp_path):
    make(tmp_path, "cache/aenv/layers", "a" * 32, 86400 * 3)
    make(tmp_path, "cache/aenv/bundles", "sha256-bb", 7200)
    make(tmp_path, "data/aenv/runs", "20260101-tau2-1", 7200)
    said = json.loads(run("ls", "-o", "json").stdout)
    assert {(entry["kind"], entry["state"]) for entry in said["entries"]} == {
        ("layers", "unused"), ("bundles", "unused"), ("runs", "unused")
    }  # fmt: skip
    assert said["bytes"] == sum(entry["bytes"] for entry in said["entries"]) >= 150_000
    text = run("ls").stdout
    assert "3 days ago" in text
    assert "packages of requirements.txt" in text
    assert [entry["name"] for entry in json.loads(run("ls", "--kind", "runs", "-o", "json").stdout)["entries"]] == [
        "20260101-tau2-1"
    ]


def test_pruning_removes_what_is_old_and_no_results_of_runs(run, tmp_path):
    old = make(tmp_path, "cache/aenv/layers", "a" * 32, 86400 * 3)
    new = make(tmp_path, "cache/aenv/bundles", "sha256-bb", 7200)
    result = make(tmp_path, "data/aenv/runs", "20260101-tau2-1", 86400 * 3)
    assert "1 would be removed" in run("prune", "--unused", "24h", "--dry-run").stdout
    assert old.is_dir()
    assert "1 removed" in run("prune", "--unused", "24h").stdout
    assert (old.exists(), new.exists(), result.exists()) == (False, True, True)
    run("prune")
    assert (new.exists(), result.exists()) == (False, True)
    run("prune", "--kind", "runs")
    assert not result.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [(("prune", "--kind", "things"), "no kind 'things'"), (("prune", "--unused", "week"), "week"),
     (("prune", "--budget", "many"), "is not a size")],
)  # fmt: skip
def test_wrong_options_are_refused(run, words, said):
    assert said in run(*words, code=2).stderr


def test_a_platform_removes_what_is_over_the_budget(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    old = make(tmp_path, "cache/aenv/layers", "a" * 32, 86400 * 3)
    new = make(tmp_path, "cache/aenv/layers", "b" * 32, 60)
    for entry in (old, new):
        (entry / "big").write_bytes(os.urandom(3 << 20))
        os.utime(entry, (time.time() - (60 if entry == new else 86400),) * 2)
    assert cache_budget.enforce_budget("0").removed == ()
    assert [entry.path for entry in cache_budget.enforce_budget("4Mi").removed] == [old]
    assert new.is_dir()


def test_the_folder_of_a_killed_command_is_a_leftover(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    left = tmp_path / f"aenv-push-{gone.pid}-abcd_123"
    left.mkdir()
    with scratch_folder("push") as own:
        found = [each.what for each in HostAudit(tmp_path / "runtime", young=0.0).all() if each.kind == "folder"]
    assert str(left) in found
    assert own not in found
