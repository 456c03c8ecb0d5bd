"""`aenv bench --fetch`: downloads over real git and HTTP from loopback, with their hashes checked."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import pytest

from aenv.bench import data_sources as sources
from aenv.bench.pinned_data import Checkout, PinnedFile, fetch
from aenv.errors import ConfigError, NetworkError

EVAL = """\
name: hello
variants:
  default:
    prompt: |
      Write hello.
metadata:
  difficulty: easy
  agent_timeout_sec: 60
  verifier_timeout_sec: 30
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        return


@contextmanager
def _serving(handler: Any) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, str, str]:
    """A bare repository that a plain web server can serve, with its commit and tree. The commit is not the newest."""
    work, bare = tmp_path / "work", tmp_path / "www" / "bench.git"

    def git(*arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        done = subprocess.run(["git", *who, *arguments], cwd=work, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    work.mkdir()
    git("init", "-q", "-b", "main")
    (work / "tasks").mkdir()
    (work / "tasks" / "one.txt").write_text("task one\n")
    git("add", ".")
    git("commit", "-qm", "first")
    commit, tree = git("rev-parse", "HEAD"), git("rev-parse", "HEAD^{tree}")
    (work / "tasks" / "one.txt").write_text("changed later\n")
    git("commit", "-qam", "second")
    bare.parent.mkdir()
    git("clone", "-q", "--bare", str(work), str(bare))
    subprocess.run(["git", "update-server-info"], cwd=bare, check=True)
    return bare, commit, tree


def _source(url: str, commit: str, tree: str) -> Checkout:
    return Checkout("bench", url, commit, tree, "--tasks")


def _left() -> list[str]:
    """Return what is in the cache of benchmarks."""
    folder = Path(os.environ["XDG_CACHE_HOME"]) / "aenv" / "benchmarks"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_checkout_comes_over_http_at_its_commit_and_only_once(repository: tuple[Path, str, str]) -> None:
    bare, commit, tree = repository
    with _serving(partial(_Quiet, directory=str(bare.parent))) as url:
        source = _source(f"{url}/bench.git", commit, tree)
        folder = fetch(source)
        assert (folder / "tasks" / "one.txt").read_text() == "task one\n"
    assert fetch(source) == folder  # the server is gone
    assert _left() == [f"bench-{commit[:12]}"]


def test_a_checkout_comes_over_git_by_its_commit_alone(repository: tuple[Path, str, str]) -> None:
    bare, commit, tree = repository
    subprocess.run(["git", "config", "uploadpack.allowAnySHA1InWant", "true"], cwd=bare, check=True)
    folder = fetch(_source(f"file://{bare}", commit, tree))
    shallow = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"], cwd=folder, check=True, capture_output=True, text=True
    )
    assert shallow.stdout.strip() == "1"


@pytest.mark.parametrize("wrong", ["commit", "tree"])
def test_another_commit_or_tree_is_refused_and_leaves_nothing(repository: tuple[Path, str, str], wrong: str) -> None:
    bare, commit, tree = repository
    bad = "0" * 40
    source = _source(f"file://{bare}", bad if wrong == "commit" else commit, bad if wrong == "tree" else tree)
    with pytest.raises((ConfigError, NetworkError)) as refused:
        fetch(source)
    assert "--fetch-from URL" in refused.value.details["hint"]
    assert _left() == []


def test_a_repository_that_is_cut_off_leaves_nothing(repository: tuple[Path, str, str]) -> None:
    bare, commit, tree = repository

    class Cut(_Quiet):
        def copyfile(self, source: Any, outputfile: Any) -> None:
            data = source.read()
            outputfile.write(data[: len(data) // 2])  # and the connection ends

    with _serving(partial(Cut, directory=str(bare.parent))) as url, pytest.raises((NetworkError, ConfigError)):
        fetch(_source(f"{url}/bench.git", commit, tree))
    assert _left() == []


def test_where_the_network_does_not_allow_it_the_two_other_ways_are_named(repository: tuple[Path, str, str]) -> None:
    with pytest.raises(NetworkError) as refused:
        fetch(_source("http://127.0.0.1:9/bench.git", *repository[1:]))
    hint = refused.value.details["hint"]
    assert "--fetch-from URL" in hint
    assert "git clone http://127.0.0.1:9/bench.git" in hint
    assert "with --tasks" in hint


@contextmanager
def _proxy(target: str) -> Iterator[tuple[str, list[str]]]:
    """A forward proxy that resolves every name to ``target``, and the URLs that it was asked for."""
    asked: list[str] = []
    direct = build_opener(ProxyHandler({}))

    class Forward(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            path = "/" + self.path.split("/", 3)[3]
            try:
                with direct.open(f"{target}{path}", timeout=20) as answer:
                    body, status = answer.read(), answer.status
            except OSError:
                body, status = b"", 404
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            return

    with _serving(Forward) as url:
        yield url, asked


def test_a_checkout_comes_through_a_proxy(repository: tuple[Path, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    bare, commit, tree = repository
    with _serving(partial(_Quiet, directory=str(bare.parent))) as url, _proxy(url) as (proxy, asked):
        monkeypatch.setenv("http_proxy", proxy)
        folder = fetch(_source("http://bench.invalid/bench.git", commit, tree))
    assert (folder / "tasks" / "one.txt").is_file()
    assert all(path.startswith("http://bench.invalid/") for path in asked)
    assert asked


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """An archive like the one that the tasks of Terminal-Bench 2 come in."""
    folder = tmp_path / "files"
    folder.mkdir()
    path = folder / "tasks.whl"
    with zipfile.ZipFile(path, "w") as archive:
        top = "inspect_evals/terminal_bench_2/challenges/hello"
        archive.writestr(f"{top}/eval.yaml", EVAL)
        archive.writestr(f"{top}/environment/Dockerfile", "FROM debian:12\n")
        archive.writestr(f"{top}/solution/solve.sh", "echo hello\n")
        archive.writestr(f"{top}/tests/test.sh", "true\n")
        archive.writestr("inspect_evals/terminal_bench_2/challenges/../../outside.txt", "x")
    return path


def _file(url: str, data: bytes) -> PinnedFile:
    return PinnedFile("tasks", url, hashlib.sha256(data).hexdigest(), sources.unpack_terminal_bench, "--tasks")


def test_tasks_in_a_file_come_over_http_and_through_a_proxy(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from aenv.bench.terminal.task import find

    with _serving(partial(_Quiet, directory=str(wheel.parent))) as url, _proxy(url) as (proxy, asked):
        monkeypatch.setenv("http_proxy", proxy)
        folder = fetch(_file("http://bench.invalid/tasks.whl", wheel.read_bytes()))
    assert asked == ["http://bench.invalid/tasks.whl"]
    [task] = find(folder)
    assert (task.name, task.instruction, task.agent_seconds) == ("hello", "Write hello.\n", 60.0)
    assert not list(folder.parent.rglob("outside.txt"))


def test_a_file_with_another_hash_is_refused_and_leaves_nothing(wheel: Path) -> None:
    with (
        _serving(partial(_Quiet, directory=str(wheel.parent))) as url,
        pytest.raises(ConfigError, match="has the SHA-256") as refused,
    ):
        fetch(_file(f"{url}/tasks.whl", b"another file"))
    assert "curl -LO" in refused.value.details["hint"]
    assert _left() == []


def test_a_file_that_is_cut_off_is_refused_and_leaves_nothing(wheel: Path) -> None:
    class Cut(_Quiet):
        def copyfile(self, source: Any, outputfile: Any) -> None:
            outputfile.write(source.read(10))

    with _serving(partial(Cut, directory=str(wheel.parent))) as url, pytest.raises(NetworkError):
        fetch(_file(f"{url}/tasks.whl", wheel.read_bytes()))
    assert _left() == []


@pytest.mark.parametrize("name", ["tau2", "terminal", "swe"])
def test_the_command_says_the_two_other_ways_without_a_network(name: str) -> None:
    command = [sys.executable, "-m", "aenv.cli", "bench", name, "--fetch-from", "http://127.0.0.1:9/x"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "Two other ways" in done.stderr
    assert _left() == []


def test_the_command_needs_one_source() -> None:
    for more in ([], ["--tasks", "x", "--fetch"]):
        command = [sys.executable, "-m", "aenv.cli", "bench", "terminal", *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "--fetch" in done.stderr
