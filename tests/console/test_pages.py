"""The pages of the console, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest

from aenv.trajectory import EpisodeKey, RunRecord, TrajectoryStore
from aenv.trajectory.platform_trajectories import PlatformTrajectories
from tests.conftest import fetch
from tests.console.conftest import DESKTOP, PHONE, api, log_in, visit
from tests.platform.parts import Served
from tests.platform.test_tenants import bearer
from tests.trajectory.conftest import greet

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

Tokens = Callable[..., str]
Watched = Callable[..., "Page"]


@pytest.fixture(scope="module")
def episodes(platform: Served, tokens: Tokens, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two samples of one task, and one long episode with an error in it, on the platform."""
    with TrajectoryStore.open(tmp_path_factory.mktemp("episodes")) as store:
        store.begin_run(RunRecord("demo", "A demonstration", {"environment": "hello-env"}))
        ids = [greet(store, 0, "Hello Ada", 1.0), greet(store, 1, "Who?", 0.0)]
        long = store.record(EpisodeKey("demo", "long"), {"environment": {"name": "hello-env"}}, episode_id="ep-long")
        for number in range(2500):
            long.append("note", text=f"note {number}")
        long.append("result", id="x", content=[{"type": "text", "text": "it broke"}], is_error=True, fault="env")
        long.end("env", failure_reason="the tool broke", fault="env")
        ids.append("ep-long")
        with PlatformTrajectories(platform.url, tokens("ann")) as there:
            there.push(store, store.all_episodes())
    return ids


@pytest.fixture
def page(episodes: list[str], watched: Watched, platform: Served, tokens: Tokens) -> Page:
    """A page of a user."""
    opened = watched()
    log_in(opened, platform, tokens("ann"))
    return opened


def test_a_wrong_token_is_refused_and_a_right_one_stays_for_this_tab(
    episodes: list[str], watched: Watched, platform: Served, tokens: Tokens
) -> None:
    page = watched()
    page.goto(f"{platform.url}/console/#/instances")
    page.get_by_label("Token", exact=True).fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_role("alert").wait_for()
    page.get_by_label("Token", exact=True).fill(tokens("ann"))
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Instances").wait_for()
    assert tokens("ann") not in page.url
    page.reload()
    page.get_by_role("heading", name="Instances").wait_for()
    assert not page.context.cookies()
    second = page.context.new_page()
    second.goto(f"{platform.url}/console/#/hub")
    second.get_by_role("heading", name="Hub").wait_for()  # the first tab hands the token on
    page.get_by_role("button", name="Log out").click()
    second.get_by_label("Token", exact=True).wait_for()


def test_each_role_sees_what_the_api_lets_it_see(
    episodes: list[str], watched: Watched, platform: Served, tokens: Tokens
) -> None:
    admin = watched()
    log_in(admin, platform, platform.first_token)
    admin.get_by_text("Creates per second").wait_for()
    user = watched()
    log_in(user, platform, tokens("ann"))
    user.get_by_text("Your token may not read metrics").wait_for()
    reader = watched()
    log_in(reader, platform, tokens("reader", "read-only"), "#/playground")
    reader.get_by_label("Environment").fill("counter")
    reader.get_by_role("button", name="Open an instance").click()
    reader.get_by_text("this needs a token with the role user").wait_for()
    scraper = watched()
    scraper.goto(f"{platform.url}/console/")
    scraper.get_by_label("Token", exact=True).fill(tokens("scraper", "metrics"))
    scraper.keyboard.press("Enter")
    scraper.get_by_text("this needs a token with the role read-only").wait_for()


def test_an_environment_is_tried_by_hand_and_its_instance_watched_and_stopped(page: Page, platform: Served) -> None:
    visit(page, platform, "#/hub/counter")
    page.get_by_role("link", name="Try it").click()
    page.get_by_role("button", name="Open an instance").click()
    page.locator("summary", has_text="echo").click()
    tool = page.locator("details.offer", has_text="echo").first
    tool.get_by_role("textbox").first.fill('<b>"hi"</b> it\'s')
    tool.get_by_role("button", name="Call").click()
    tool.locator(".answer pre").wait_for()
    assert tool.locator(".answer pre").inner_text() == '<b>"hi"</b> it\'s'
    tool.locator("summary", has_text="curl").click()
    assert '-d \'{"text":' in tool.locator(".snippets").inner_text()
    page.locator("summary", has_text="speak").click()
    speaker = page.locator("details.offer", has_text="speak").first
    speaker.get_by_role("textbox").first.fill("\x1b[31mred\x1b[0m words")
    speaker.get_by_role("button", name="Call").click()
    speaker.locator(".answer .quiet").wait_for()
    page.locator("main .row a").first.click()
    page.locator(".log", has_text="red words").wait_for()  # live, and without the escapes
    page.get_by_label("New time to live").fill("2h")
    page.get_by_role("button", name="Renew").click()
    page.get_by_text("2h, 1 h 59 min left").wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Stop it now?").click()
    page.locator(".badge", has_text="Terminated").wait_for()
    page.locator(".note, .failure").first.wait_for()  # why it ended


def test_an_ended_instance_says_why(page: Page, platform: Served, tokens: Tokens) -> None:
    made = api(platform, tokens("ann"), "/env-instance", {"envName": "counter"})
    fetch(platform.url, f"/instance/{made['id']}/tools/die", body=b"{}", method="POST", headers=bearer(tokens("ann")))
    visit(page, platform, f"#/instances/{made['id']}")
    page.get_by_text("Exit code", exact=True).wait_for()
    page.locator(".failure, .note").first.wait_for()


def test_the_samples_of_a_task_stand_side_by_side(page: Page, platform: Served, episodes: list[str]) -> None:
    visit(page, platform, "#/runs")
    page.get_by_role("link", name="A demonstration").click()
    page.get_by_role("link", name="greet").click()
    page.locator(".parting").wait_for()
    assert "they part at step" in page.locator("main").inner_text()
    assert page.locator(".sample").count() == 2
    assert "advantage +0.707" in page.locator(".sample").first.inner_text()
    page.get_by_role("link", name="Compare the first two").click()
    page.get_by_label("Difference").get_by_text("steps are the same").wait_for()


def test_all_of_a_long_run_is_read_when_it_is_asked_for(page: Page, platform: Served) -> None:
    """Ten thousand episodes are read at once; the answers are made up here, as recording so many takes a while."""

    def answer(route: Route) -> None:
        after = int(parse_qs(urlsplit(route.request.url).query).get("after", ["0"])[0])
        items = [
            {"id": str(number), "task": f"t{number // 8}", "sample": number % 8, "state": "ended", "outcome": "ok",
             "final": True, "score": number % 2, "seconds": 1.0, "began": number}
            for number in range(after, after + 1000)
        ]  # fmt: skip
        data = {"items": items, "next": str(after + 1000) if after < 11_000 else None}
        route.fulfill(json={"success": True, "code": 0, "message": "", "data": data})

    page.route(re.compile(r"/trajectories\?.*run=long-run"), answer)
    visit(page, platform, "#/runs/long-run")
    page.get_by_text("The first 10,000 episodes.").wait_for()
    page.get_by_role("button", name="Read all").click()
    page.locator(".figure .value", has_text="12,000").wait_for()
    page.get_by_text("of 12,000 rewards; 0 without one").wait_for()
    assert not page.get_by_role("button", name="Read all").is_visible()


def test_a_long_episode_is_windowed_searched_and_walked_by_keys(
    page: Page, platform: Served, episodes: list[str]
) -> None:
    visit(page, platform, f"#/episode/{episodes[2]}")
    page.locator(".windowed-row").first.wait_for()
    assert page.locator(".windowed-row").count() < 80
    page.keyboard.press("e")
    page.locator(".detail").get_by_text("it broke").first.wait_for()
    page.get_by_label("Search").fill("note 2499")
    page.keyboard.press("Enter")
    page.get_by_text("1 of 2,503 events").wait_for()
    page.locator(".windowed-row").first.click()
    page.locator(".detail pre", has_text="note 2499").first.wait_for()
    assert "at=2500" in page.url
    page.reload()
    page.locator(".detail pre", has_text="note 2499").first.wait_for()


def test_a_token_view_is_there_when_ids_were_recorded(page: Page, platform: Served, episodes: list[str]) -> None:
    visit(page, platform, f"#/episode/{episodes[0]}?at=3")
    page.locator(".detail summary", has_text="2 tokens").click()
    assert page.locator(".token").count() == 2


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_and_is_labelled(
    size: dict[str, int], scheme: str, watched: Watched, platform: Served, tokens: Tokens, episodes: list[str]
) -> None:
    page = watched(viewport=size, color_scheme=scheme)
    log_in(page, platform, platform.first_token)
    addresses = ["#/", "#/instances", "#/services", "#/metrics", "#/hub", "#/hub/counter", "#/playground",
                 "#/runs", "#/runs/demo", "#/group/demo/greet", f"#/episode/{episodes[0]}"]  # fmt: skip
    for address in addresses:
        visit(page, platform, address)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), address
        assert page.evaluate(UNLABELLED) == [], address
        assert page.evaluate("document.querySelectorAll('h1').length") == 1, address


@pytest.mark.long
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("role", ["user", "read-only", "admin"])
def test_every_page_opens_with_each_role(
    size: dict[str, int], role: str, watched: Watched, platform: Served, tokens: Tokens, episodes: list[str]
) -> None:
    token = {"user": tokens("ann"), "read-only": tokens("reader", "read-only"), "admin": platform.first_token}[role]
    made = api(platform, tokens("ann"), "/env-instance", {"envName": "counter"})["id"]
    page = watched(viewport=size)
    log_in(page, platform, token)
    for address in ("#/", "#/instances", f"#/instances/{made}", f"#/instances/{made}?view=Files", "#/services", "#/hub",
                    "#/hub/counter?view=Access", "#/hub/counter?view=Files", "#/playground", "#/runs", "#/runs/demo",
                    "#/group/demo/greet", f"#/episode/{episodes[0]}", "#/metrics"):  # fmt: skip
        visit(page, platform, address)
        assert page.locator("body.outside").count() == 0, address  # no role is thrown out by a page
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), address
    api(platform, tokens("ann"), f"/env-instance/{made}", method="DELETE")


UNLABELLED = """
  [...document.querySelectorAll('input, select, textarea, button, a[href], [role=listbox], [role=region], img')]
  .filter(e => e.getClientRects().length)
  .filter(e => !(e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim() || e.hasAttribute('alt')))
  .map(e => e.outerHTML.slice(0, 120))"""


def test_the_first_paint_needs_few_bytes(browser: Browser, platform: Served) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{platform.url}/console/")
    page.get_by_label("Token", exact=True).wait_for()
    moved = page.evaluate("performance.getEntriesByType('resource').reduce((n, e) => n + e.transferSize, 0)")
    context.close()
    assert 0 < moved < 60_000


def test_without_tokens_there_is_no_login(published: Path, watched: Watched) -> None:
    from tests.platform.parts import serving

    with serving(published, auth=False) as served:
        page = watched()
        page.goto(f"{served.url}/")
        page.get_by_text("Creates per second").wait_for()
        assert page.url.endswith("/console/")
