"""A run as static pages: a plain file server shows it, with nothing behind it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aenv.console.static_site import EVENTS_PER_FILE, write_site
from aenv.errors import NotFound, UsageError
from aenv.trajectory import EpisodeKey, RunRecord, TrajectoryStore
from tests.console.test_attacks import SCRIPTS
from tests.trajectory.conftest import greet

if TYPE_CHECKING:
    from playwright.sync_api import Page


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TrajectoryStore]:
    with TrajectoryStore.open(tmp_path / "store") as opened:
        opened.begin_run(RunRecord("demo", "A demonstration"))
        greet(opened, 0, "Hello Ada", 1.0)
        greet(opened, 1, "Who?", 0.0)
        long = opened.record(EpisodeKey("demo", "long"), {"environment": {"name": "x"}}, episode_id="ep-long")
        for number in range(2 * EVENTS_PER_FILE):
            long.append("note", text=f"note {number} {SCRIPTS}")
        long.end("policy", failure_reason="it gave up")
        for sample, parent in enumerate([None, "ep-fork-0", "ep-fork-1"]):
            parents = [{"kind": "fork", "episode": parent}] if parent else []
            begin = {"environment": {"name": "x"}, "parents": parents}
            opened.record(EpisodeKey("demo", "forked", sample), begin, episode_id=f"ep-fork-{sample}").end(
                "ok", reward=1.0
            )
        yield opened


@pytest.fixture
def site(store: TrajectoryStore, tmp_path: Path) -> Iterator[str]:
    target = tmp_path / "site"
    assert write_site(target, store, "demo") == 6
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(target)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_runs_groups_and_episodes_are_shown(site: str, watched: Callable[..., Page]) -> None:
    page = watched()
    page.goto(site)
    page.get_by_role("link", name="A demonstration").click()
    assert page.locator("#pages a").all_inner_texts() == ["Runs"]
    page.get_by_role("link", name="greet").click()
    page.locator(".parting").wait_for()
    page.get_by_role("link", name="Compare the first two").click()
    page.get_by_label("Difference").get_by_text("steps are the same").wait_for()
    page.goto(f"{site}console/#/episode/ep-long")
    page.locator(".windowed-row").first.wait_for()
    page.keyboard.press("e")
    page.locator(".detail", has_text="it gave up").wait_for()
    page.get_by_label("Search").fill("note 399")
    page.keyboard.press("Enter")
    page.get_by_text("1 of 402 events").wait_for()
    assert page.evaluate("() => window.pwned") is None
    page.goto(f"{site}console/#/instances")
    page.get_by_text("there is no platform behind them").first.wait_for()


def test_forks_of_a_task_are_shown_as_a_tree(site: str, watched: Callable[..., Page]) -> None:
    page = watched()
    page.goto(f"{site}console/#/group/demo/forked")
    page.locator("details", has_text="Fork tree").wait_for()
    assert page.locator("details ul ul ul li a").first.inner_text() == "sample 2"
    page.goto(f"{site}console/#/group/demo/greet")
    page.locator(".parting").wait_for()
    assert page.get_by_text("Fork tree").count() == 0


def test_a_folder_with_something_in_it_stays_as_it_is(store: TrajectoryStore, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").write_text("kept")
    with pytest.raises(UsageError, match="is not empty"):
        write_site(tmp_path / "full", store, "demo")
    with pytest.raises(NotFound):
        write_site(tmp_path / "new", store, "none")
    assert not (tmp_path / "new").exists()
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["kept"]


def test_the_command_writes_the_newest_run(
    store: TrajectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with TrajectoryStore.open() as own:
        own.begin_run(RunRecord("mine", "Mine"))
    command = [sys.executable, "-m", "aenv.cli", "console", "--static", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("0 episodes in")
    assert (tmp_path / "out" / "console" / "index.html").is_file()
