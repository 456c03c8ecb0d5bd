"""``aenv console``: a one-time link to the local platform, and to another one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aenv.console.logins import LINK_SECONDS, Logins
from aenv.trajectory import RunRecord, TrajectoryStore
from tests.conftest import fetch, stop_all
from tests.platform.parts import Served
from tests.trajectory.conftest import greet
from tests.waiting import wait_while

if TYPE_CHECKING:
    from playwright.sync_api import Page


@contextmanager
def console(variables: dict[str, str], *options: str) -> Iterator[str]:
    """Run ``aenv console`` while the block runs; its link."""
    command = [sys.executable, "-m", "aenv.cli", "console", "--output", "json", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}) as process:
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or lines[-1] != "}\n":
            lines.append(process.stdout.readline())
            assert lines[-1], "it did not start"
        yield json.loads("".join(lines))["url"]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130


def test_a_code_works_once_and_for_ten_minutes() -> None:
    now = [0.0]
    logins = Logins(lambda: now[0])
    first, second = logins.new_code(), logins.new_code()
    token = logins.exchange(first)
    assert logins.knows(token)
    assert logins.exchange(first) is None
    now[0] = LINK_SECONDS
    assert logins.exchange(second) is None
    assert not logins.knows("other")
    assert not logins.knows(None)


def test_no_command_line_has_the_link_of_a_browser(local: dict[str, str], tmp_path: Path) -> None:
    """The link logs in whoever uses it first, and every user can read the command lines of all."""
    programs, seen = tmp_path / "bin", tmp_path / "seen"
    programs.mkdir()
    launcher = programs / "xdg-open"
    launcher.write_text(f'#!/bin/sh\necho "$1" > {seen}.new; mv {seen}.new {seen}\n')
    launcher.chmod(0o755)
    with console({**local, "PATH": f"{programs}:{os.environ['PATH']}"}, "--open") as link:
        wait_while(lambda: not seen.exists() and "no browser was opened", "a browser is opened")
        page = Path(seen.read_text().strip())
        assert (link in page.read_text(), "code=" in str(page)) == (True, False)
        assert page.parent.stat().st_mode & 0o077 == 0
    assert not page.exists()


@pytest.fixture
def local(tmp_path: Path, sandboxes: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The variables of a user who has recorded two episodes."""
    runtime = Path(tempfile.mkdtemp(prefix="aenv-c-", dir="/tmp"))  # paths of sockets are short
    variables = {"XDG_DATA_HOME": str(tmp_path / "data"), "XDG_CACHE_HOME": str(tmp_path / "cache"),
                 "XDG_RUNTIME_DIR": str(runtime), "HOME": str(tmp_path)}  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with TrajectoryStore.open() as store:
        store.begin_run(RunRecord("demo", "A demonstration"))
        greet(store, 0, "Hello Ada", 1.0)
        greet(store, 1, "Who?", 0.0)
    yield variables
    stop_all(runtime / "aenv")
    shutil.rmtree(runtime)


def test_nothing_is_answered_without_the_link(local: dict[str, str]) -> None:
    with console(local) as link:
        place, _, code = link.partition("/console/#code=")
        assert fetch(place, "/env-instance/list")[0] == 401
        assert fetch(place, "/trajectories", headers={"Authorization": "Bearer x"})[0] == 401
        assert fetch(place, "/")[0] == 401
        wrong = {"origin": "http://evil.example"}
        assert fetch(place, "/console/session", {"code": code}, headers=wrong)[0] == 403
        assert fetch(place, "/console/session", {"code": code}, headers={"host": "evil.example"})[0] == 403
        assert fetch(place, "/console/session", {"code": "x"})[0] == 401
        status, answer = fetch(place, "/console/session", {"code": code})
        assert status == 200
        assert fetch(place, "/console/session", {"code": code})[0] == 401
        right = {"Authorization": f"Bearer {answer['token']}"}
        status, runs = fetch(place, "/trajectory-runs", headers=right)
        assert (status, runs["data"]["items"][0]["episodes"]) == (200, {"ok": 2})
        status, page = fetch(place, "/trajectories?limit=1", headers=right)
        assert (status, page["data"]["next"]) == (200, page["data"]["items"][0]["id"])
        events = fetch(place, f"/trajectories/{page['data']['next']}/events?start=1&limit=2", headers=right)[1]["data"]
        assert ([each["seq"] for each in events["items"]], events["next"]) == ([1, 2], 3)
        assert fetch(place, "/trajectories/none", headers=right)[0] == 404
        assert fetch(place, "/trajectories?limit=x", headers=right)[0] == 422
        assert fetch(place, "/env-instance", {"envName": "x", "source": "/"}, headers=right)[0] == 403


def test_the_local_platform_is_shown_and_used(
    local: dict[str, str], watched: Callable[..., Page], published: Path
) -> None:
    with console(local) as link:
        page = watched()
        page.goto(link)
        page.get_by_text("Creates per second").wait_for()
        assert "code" not in page.url
        page.get_by_role("link", name="Hub").click()
        page.get_by_role("link", name="weather-demo").click()
        page.get_by_role("link", name="Try it").click()
        page.get_by_role("button", name="Open an instance").click()
        offer = page.locator("details.offer", has_text="get_weather").first
        offer.locator("summary").first.click()
        offer.get_by_role("textbox").first.fill("Paris")
        offer.get_by_role("button", name="Call").click()
        offer.locator(".answer pre", has_text="sunny").wait_for()
        page.get_by_role("link", name="Runs").click()
        page.get_by_role("link", name="A demonstration").click()
        page.get_by_role("link", name="greet").click()
        page.locator(".parting").wait_for()
        page.goto(link)  # its code was used, and this tab is logged in
        page.get_by_text("Creates per second").wait_for()


MODEL = """
from aenv.rollout import calls

def answer(messages, tools):
    if messages[-1]["role"] == "tool":
        return f"It says {messages[-1]['content']}; you wrote {sum(m['role'] == 'user' for m in messages)} messages."
    return calls(("get_weather", {"city": "<b>Paris</b>"}))
"""


def test_a_model_is_talked_to_and_calls_tools(
    local: dict[str, str], watched: Callable[..., Page], tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    with console(local, "--model", f"{tmp_path / 'model.py'}:answer") as link:
        place = link.partition("/console/#code=")[0]
        assert fetch(place, "/console/model")[0] == 401
        page = watched()
        page.goto(link)
        page.get_by_text("Creates per second").wait_for()
        page.goto(f"{place}/console/#/playground?env=weather-demo")
        page.get_by_role("button", name="Open an instance").click()
        page.locator("summary", has_text="Chat with").click(timeout=60_000)
        for number in (1, 2):
            page.get_by_label("Message to the model").fill("How is it in Paris?")
            page.keyboard.press("Enter")
            page.locator(".message.assistant", has_text=f"you wrote {number} messages").wait_for()
        assert page.locator(".message.tool").count() == 2
        assert page.locator(".messages b").count() == 0


def test_another_platform_is_shown_with_a_token_that_the_browser_does_not_get(
    platform: Served, tokens: Callable[..., str], watched: Callable[..., Page]
) -> None:
    variables = {"AENV_SYSTEM_URL": platform.url, "AENV_API_KEY": tokens("ann")}
    with console(variables) as link:
        page = watched()
        page.goto(link)
        page.get_by_text("Your token may not read metrics").wait_for()
        assert page.evaluate("JSON.stringify(sessionStorage)").count(tokens("ann")) == 0
