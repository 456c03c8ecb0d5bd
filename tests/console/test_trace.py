"""Where the time of an episode went, and the link to its trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from click.testing import CliRunner

from aenv.cli.commands.operate.console import command
from aenv.errors import UsageError
from aenv.trajectory import EpisodeKey, TrajectoryStore
from tests.console.test_private import console, local  # noqa: F401

if TYPE_CHECKING:
    from playwright.sync_api import Page

TRACE = "0af7651916cd43dd8448eb211c80319c"


def record_traced() -> str:
    with TrajectoryStore.open() as store:
        record = store.record(EpisodeKey("demo", "traced"), {"environment": {"name": "hello-env"}, "trace": TRACE})
        record.append("message", role="assistant", content="I look.", model="m", seconds=2.0)
        record.append("call", id="1", of="tool", tool="look", arguments={})
        record.append("result", id="1", content=[], is_error=True, error="it broke", seconds=0.5)
        record.append("call", id="reward", of="reward", arguments={})
        record.append("result", id="reward", content=[], structured=1.0, is_error=False, seconds=0.1)
        record.end("ok", reward=1.0)
        return record.episode_id


def test_an_episode_shows_where_its_time_went_and_links_to_its_trace(
    local: dict[str, str],  # noqa: F811
    watched: Callable[..., Page],
) -> None:
    episode = record_traced()
    with console(local, "--trace-url", "https://traces.example/t/{trace}") as link:
        page = watched()
        page.goto(link)
        page.get_by_text("Creates per second").wait_for()
        page.goto(f"{link.partition('#')[0]}#/episode/{episode}")
        page.get_by_role("button", name="Trace").click()
        trace = page.get_by_label("Trace of the episode")
        assert trace.get_by_role("link", name=TRACE).get_attribute("href") == f"https://traces.example/t/{TRACE}"
        assert trace.locator("tbody tr").count() == 3
        assert trace.locator(".span.tool.wrong").count() == 1
        page.reload()  # the address says that the trace is shown
        trace.get_by_role("button", name="look").click()
        page.locator(".detail").get_by_text("call", exact=False).first.wait_for()


def test_a_trace_url_without_a_place_for_the_id_is_refused() -> None:
    done = CliRunner().invoke(command, ["--trace-url", "https://traces.example/"])
    assert isinstance(done.exception, UsageError)
    assert "{trace}" in str(done.exception)
