"""A platform and a browser for the tests of the console."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pydantic_core import to_json

from tests.conftest import fetch
from tests.platform.conftest import data, platform, published, tokens  # noqa: F401
from tests.platform.parts import Served
from tests.platform.test_tenants import bearer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PHONE, DESKTOP = {"width": 390, "height": 800}, {"width": 1280, "height": 800}


@pytest.fixture(scope="module")
def browser(published: Any) -> Iterator[Browser]:  # noqa: F811
    """A browser. `published` comes first: nothing can call ``asyncio.run`` while Playwright has its loop."""
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    if CHROMIUM is None:
        pytest.skip("there is no chromium: apt-get install -y chromium")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


TROUBLES = """
if (self === top) {
  addEventListener("securitypolicyviolation", (event) => event.effectiveDirective === "frame-src" ||
    console.error(`trouble: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`));
  addEventListener("error", (event) => console.error(`trouble: ${event.message}`));
  addEventListener("unhandledrejection", (event) => console.error(`trouble: ${event.reason}`));
}
"""
"""Tells what fails in the console itself, and what its policy refuses; pages in its frames may try what they like."""
ELSEWHERE = re.compile(r"^(?:https?|wss?)://(?!127\.0\.0\.1:)")


@pytest.fixture
def watched(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open pages of which every error, dialog and request to another origin fails the test."""
    troubles: list[str] = []
    contexts = []

    def open_page(**options: Any) -> Page:
        context = browser.new_context(**{"viewport": DESKTOP, **options})
        contexts.append(context)
        context.add_init_script(TROUBLES)
        context.route(ELSEWHERE, lambda route: (troubles.append(route.request.url), route.abort()))
        page = context.new_page()
        page.on("console", lambda said: troubles.append(said.text) if said.text.startswith("trouble:") else None)
        page.on("dialog", lambda dialog: (troubles.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not troubles, troubles


def log_in(page: Page, served: Served, token: str, address: str = "") -> None:
    """Log in with a token, and go to a page."""
    page.goto(f"{served.url}/console/{address}")
    page.get_by_label("Token", exact=True).fill(token)
    page.get_by_role("button", name="Log in").click()
    page.locator("body:not(.outside) main h1").wait_for()


def visit(page: Page, served: Served, address: str) -> None:
    """Go to another page of the console."""
    page.goto(f"{served.url}/console/{address}")
    page.locator("main h1").wait_for()


def api(served: Served, token: str, path: str, body: Any = None, method: str = "GET") -> Any:
    """Ask the platform, and return the data of its answer."""
    sent = None if body is None else to_json(body)
    status, answer = fetch(served.url, path, body=sent, method="POST" if sent else method, headers=bearer(token))
    assert status == 200, answer
    return answer["data"]
