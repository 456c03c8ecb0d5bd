"""Pages of instances and services in a real browser: terminal, files, ports, usage, replicas; and the metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import fetch
from tests.console.conftest import api, log_in, visit
from tests.platform.parts import Served
from tests.platform.test_tenants import bearer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Tokens = Callable[..., str]
Watched = Callable[..., "Page"]


@pytest.fixture(scope="module")
def instance(browser: Browser, platform: Served, tokens: Tokens) -> Iterator[str]:
    made = api(platform, tokens("ann"), "/env-instance", {"envName": "counter", "ttl": "1h"})["id"]
    yield made
    fetch(platform.url, f"/env-instance/{made}", method="DELETE", headers=bearer(tokens("ann")))


@pytest.fixture
def page(watched: Watched, platform: Served, tokens: Tokens) -> Page:
    opened = watched()
    log_in(opened, platform, tokens("ann"))
    return opened


def test_a_terminal_is_a_real_shell_in_the_instance(page: Page, platform: Served, instance: str) -> None:
    assert not page.evaluate("performance.getEntriesByType('resource').some(e => e.name.includes('xterm'))")
    visit(page, platform, f"#/instances/{instance}?view=Terminal")
    page.get_by_text("connected", exact=True).wait_for()
    page.locator(".xterm-helper-textarea").focus()
    page.keyboard.type("echo $((6*7)) in $(tput cols || stty size)\n")
    page.locator(".xterm-rows", has_text="42 in ").wait_for()
    page.keyboard.type("printf '\\033]0;title\\007\\033]8;;javascript:1\\007link\\033]8;;\\007\\n'; exit 3\n")
    page.get_by_text("ended with exit code 3").wait_for()
    assert page.title().startswith("counter")
    page.get_by_role("button", name="Open it again").click()
    page.get_by_text("connected", exact=True).wait_for()


def test_a_terminal_needs_the_token(browser: Browser, platform: Served, instance: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{platform.url}/console/")
    closed = page.evaluate(
        """([id, protocols]) => new Promise(done => {
          const socket = new WebSocket(location.origin.replace('http', 'ws') + `/instance/${id}/exec`, protocols);
          socket.onopen = () => done('open'); socket.onclose = () => done('closed');
        })""",
        [instance, ["aenv", "bearer.bm90aGluZw"]],
    )
    context.close()
    assert closed == "closed"


def test_files_are_written_read_and_removed(page: Page, platform: Served, instance: str, tokens: Tokens) -> None:
    visit(page, platform, f"#/instances/{instance}?view=Files&path=%2Ftmp")
    page.get_by_label("Name of a new file").fill("note.txt")
    page.get_by_role("button", name="New file").click()
    page.get_by_label("Content of /tmp/note.txt").fill("<b>hello</b>\n")
    page.get_by_role("button", name="Save").click()
    page.get_by_role("button", name="note.txt").wait_for()
    status, _ = fetch(
        platform.url, f"/instance/{instance}/files/stat?path=/tmp/note.txt", headers=bearer(tokens("ann"))
    )
    assert status == 200
    page.reload()
    page.get_by_role("button", name="note.txt").click()
    assert page.get_by_label("Content of /tmp/note.txt").input_value() == "<b>hello</b>\n"
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Download").click()
    assert downloading.value.suggested_filename == "note.txt"
    page.get_by_role("button", name="Remove").click()
    page.get_by_role("button", name="Remove it now?").click()
    page.get_by_role("button", name="note.txt").wait_for(state="detached")


def test_a_port_gets_an_address(page: Page, platform: Served, instance: str, tokens: Tokens) -> None:
    serve = {"command": ["python3", "-m", "http.server", "8123"], "detach": True, "cwd": "/tmp"}
    api(platform, tokens("ann"), f"/instance/{instance}/exec", serve)
    visit(page, platform, f"#/instances/{instance}?view=Ports")
    row = page.locator("tr", has_text="8123")
    for _ in range(100):
        if row.count():
            break
        page.get_by_role("button", name="Look again").click()
        page.wait_for_timeout(200)
    row.get_by_role("button", name="Make an address").click()
    link = page.locator("p a[href*='/port/']").get_attribute("href")
    assert link is not None
    other = page.context.new_page()
    other.goto(link)
    other.get_by_text("Directory listing for /").first.wait_for()
    assert other.evaluate("self.origin") == "null"  # what it serves has no rights in the platform's origin
    other.close()


def test_usage_is_drawn_over_time(page: Page, platform: Served, instance: str) -> None:
    visit(page, platform, f"#/instances/{instance}?view=Usage")
    page.get_by_text("MiB").first.wait_for()
    page.locator("svg.line polyline[points*=' ']").first.wait_for(state="attached")  # more than one point


def test_a_service_is_started_scaled_and_deleted(page: Page, platform: Served) -> None:
    visit(page, platform, "#/services")
    page.locator("summary", has_text="Start a service").click()
    page.locator("#service-env").fill("counter")
    page.get_by_role("button", name="Start a service").click()
    page.get_by_text("1 of 1").wait_for(timeout=60_000)
    page.get_by_label("Replicas").first.fill("2")
    page.get_by_role("button", name="Scale").click()
    page.get_by_text("2 of 2").wait_for(timeout=60_000)
    assert page.get_by_role("link", name="call its tools").count() == 2
    page.get_by_role("tab", name="Events").click()
    page.get_by_role("region", name="Events").wait_for()
    page.get_by_role("tab", name="Log").click()
    page.locator("pre.log").wait_for()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete it now?").click()
    page.get_by_role("heading", name="Services").wait_for()


def test_metrics_are_shown_without_a_prometheus(watched: Watched, platform: Served, tokens: Tokens) -> None:
    admin = watched()
    log_in(admin, platform, platform.first_token, "#/metrics")
    admin.get_by_role("heading", name="aenv_api_places").wait_for()
    admin.get_by_label("Search").fill("create_duration")
    admin.keyboard.press("Enter")
    admin.get_by_role("heading", name="aenv_api_places").wait_for(state="detached")
    user = watched()
    log_in(user, platform, tokens("ann"), "#/metrics")
    user.get_by_text("Your token may not read metrics").wait_for()


def test_the_overview_says_what_died_and_whose_fault_it_was(
    watched: Watched, platform: Served, tokens: Tokens, instance: str
) -> None:
    made: Any = api(platform, tokens("ann"), "/env-instance", {"envName": "counter"})["id"]
    fetch(platform.url, f"/instance/{made}/tools/die", body=b"{}", method="POST", headers=bearer(tokens("ann")))
    page = watched()
    log_in(page, platform, tokens("ann"))
    page.get_by_role("link", name=made).wait_for(timeout=60_000)
    page.get_by_text("exit code 3").first.wait_for()
