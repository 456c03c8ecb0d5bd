"""axe-core on every page of the console: desktop and phone, light and dark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.console.conftest import DESKTOP, PHONE, api, log_in, visit
from tests.console.test_pages import episodes  # noqa: F401
from tests.mcp_clients.conftest import node  # noqa: F401
from tests.platform.parts import Served

if TYPE_CHECKING:
    from playwright.sync_api import Page

RUN = """() => axe.run(document, { iframes: false, resultTypes: ["violations"] }).then(({ violations }) => violations
  .filter(each => ["serious", "critical"].includes(each.impact))
  .map(each => [each.id, each.nodes.slice(0, 3).map(node => node.html.slice(0, 160) + " " + node.failureSummary)]))"""


@pytest.fixture(scope="session")
def axe(node: Any) -> str:  # noqa: F811
    """The source of axe-core."""
    return Path(node.modules(), "axe-core", "axe.min.js").read_text()


@pytest.fixture(scope="module")
def addresses(platform: Served, episodes: list[str]) -> list[str]:  # noqa: F811
    """Every page, with something on it."""
    made = api(platform, platform.first_token, "/env-instance", {"envName": "counter", "ttl": "1h"})["id"]
    app = api(platform, platform.first_token, "/env-instance", {"envName": "mini-program", "ttl": "1h"})["id"]
    page = {"file_path": "index.html", "content": "<!doctype html><html lang=en><title>x</title>Hello"}
    api(platform, platform.first_token, f"/instance/{app}/functions/save_file", page)
    views = [f"#/instances/{made}?view={view}" for view in ("Log", "Events", "Usage", "Terminal", "Files", "Ports")]
    hub = [f"#/hub/counter?view={view}" for view in ("Offers", "README", "Tasks", "Files", "Versions", "Access")]
    runs = ["#/runs", "#/runs/demo", "#/group/demo/greet", f"#/episode/{episodes[0]}?at=3&trace=1"]
    ide = [f"#/ide/{app}?view={view}" for view in ("Preview", "Files", "History")]
    others = ["#/", "#/instances", "#/services", "#/hub", "#/playground", f"#/playground?instance={made}", "#/metrics"]
    return [*others, *views, *hub, *runs, *ide, f"#/episode/{episodes[0]}?with={episodes[1]}", "#/none"]


@pytest.mark.long
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_serious_issue(
    addresses: list[str], axe: str, size: dict[str, int], scheme: str, watched: Callable[..., Page], platform: Served
) -> None:
    page = watched(viewport=size, color_scheme=scheme)
    page.goto(f"{platform.url}/console/")
    page.get_by_label("Token", exact=True).wait_for()
    page.evaluate(axe)
    found = {"login": page.evaluate(RUN)}
    log_in(page, platform, platform.first_token)
    page.evaluate(axe)
    for address in addresses:
        visit(page, platform, address)
        if "Terminal" in address:
            page.get_by_text("connected", exact=True).wait_for()
        found[address] = page.evaluate(RUN)
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), address
    assert {address: each for address, each in found.items() if each} == {}
