"""The hub in a real browser: tasks, files, versions, who may what; authors' views; and a replayed episode."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aenv.hub.local_hub import LocalHub
from aenv.hub.open_hub import HubLocation, open_catalog
from aenv.schema.envhub import PushRequest
from aenv.trajectory import EpisodeKey, RunRecord, TrajectoryStore
from aenv.trajectory.platform_trajectories import PlatformTrajectories
from tests.console.conftest import api, log_in, visit
from tests.hub.parts import bundle_of
from tests.platform.parts import Served, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Tokens = Callable[..., str]
Watched = Callable[..., "Page"]

SHOP = '''
from aenv import register_function, register_reward, register_tasks, register_tool

cart = 0


@register_tool
def add(count: int) -> int:
    """Put apples into the cart."""
    global cart
    cart += count
    return cart


@register_function
def state() -> dict:
    return {"cart": cart}


@register_reward
def bought(wanted: int) -> float:
    return float(cart == wanted)


@register_tasks
def tasks():
    for number in (1, 2):
        yield {"id": f"apples-{number}", "instruction": f"Buy {number} apples.", "hidden": {"answer": "secret-answer"}}
'''
VIEW = """<!doctype html><link rel="stylesheet" href="view.css"><h1 id="cart">?</h1><script src="view.js"></script>"""
VIEW_CODE = """
const show = (text) => (document.querySelector("#cart").textContent = text);
aenv.on("instance", async () => show(`cart ${(await aenv.call("state", {})).cart}`));
aenv.on("event", (event) => show(`event ${event.seq} ${event.kind}`));
const tries = [() => parent.document.title, () => sessionStorage.getItem("aenv-token"), () => document.cookie,
  () => fetch("/env-instance/list"), () => (top.location = "https://example.com/"), () => open("https://example.com/")];
for (const each of tries) { try { Promise.resolve(each()).catch(() => 0); } catch { /* refused */ } }
"""


LAYOUT = {
    "function": "state",
    "seconds": 0.5,
    "show": [
        {"kind": "figure", "title": "In the cart", "at": "/cart"},
        {"kind": "columns", "title": "Board", "at": "/board"},
        {"kind": "table", "title": "Orders", "at": "/orders", "columns": ["what", "count"]},
        {"kind": "grid", "title": "Shelf", "at": "/shelf"},
        {"kind": "markdown", "title": "Note", "at": "/note"},
        {"kind": "image", "title": "Label", "at": "/label"},
        {"kind": "progress", "title": "Filled", "at": "/filled"},
        {"kind": "line", "title": "Prices", "at": "/prices"},
        {"kind": "facts", "title": "Facts", "at": "/facts"},
        {"kind": "json", "title": "Missing", "at": "/missing"},
        {"kind": "button", "title": "Empty it", "function": "empty"},
    ],
}
STATEFUL = """
from aenv import register_function, register_tool

BAD = "<img src=x onerror=alert(1)>"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
cart = [0]

@register_function
def state() -> dict:
    return {"cart": cart[0], "board": {BAD: ["tea", BAD], "done": []}, "orders": [{"what": BAD, "count": 2}],
            "shelf": ["#.#", ["a", BAD]], "note": "# " + BAD, "label": {"mimeType": "image/png", "data": PIXEL},
            "filled": 0.5, "prices": [1, None, 3], "facts": {BAD: BAD}}

@register_tool
def add(count: int) -> dict:
    cart[0] += count
    return state()

@register_function
def empty() -> None:
    cart[0] = 0
"""


@pytest.fixture(scope="module")
def platform(published: Path) -> Iterator[Served]:
    with serving(published) as served:
        yield served


@pytest.fixture(scope="module")
def shop(published: Path, platform: Served, tokens: Tokens) -> str:
    """Two versions of an environment of ann's, the second with a view of its own."""
    view = {"console/index.html": VIEW, "console/view.js": VIEW_CODE, "console/view.css": "h1 { color: rgb(1, 2, 3) }"}
    files = {"src/shop.py": SHOP, "README.md": "# Shop\n"}
    asyncio.run(publish(published, "1.0.0", files))
    asyncio.run(publish(published, "1.1.0", {**files, **view, "README.md": "# Shop\n\nNew.\n"}))
    drawn = {"src/shop.py": STATEFUL, "README.md": "# Drawn", "console/layout.json": json.dumps(LAYOUT)}
    asyncio.run(publish(published, "1.0.0", drawn, "drawn"))
    return "shop"


async def publish(data: Path, version: str, files: dict[str, str], name: str = "shop") -> None:
    hub = LocalHub(open_catalog(HubLocation.of(data=data)))
    bundle, blobs = bundle_of(name, version, {name: text.encode() for name, text in files.items()})
    try:
        for digest in await hub.missing(list(blobs)):
            await hub.put_blob(digest, blobs[digest])
        await hub.push(PushRequest(bundle=bundle.model_dump(), readme=files["README.md"], public=True), False)
    finally:
        await hub.close()


@pytest.fixture(scope="module")
def episode(shop: str, platform: Served, tokens: Tokens, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An episode whose second result is not what the environment gives, with commands of a terminal in it."""
    with TrajectoryStore.open(tmp_path_factory.mktemp("replayed")) as store:
        store.begin_run(RunRecord("replayed", "To be replayed"))
        begin = {"environment": {"name": "shop", "version": "1.1.0"}, "task": {"id": "apples-2"}}
        record = store.record(EpisodeKey("replayed", "apples-2"), begin, episode_id="ep-replayed")
        for number, (count, text) in enumerate([(1, "1"), (1, "3")]):
            record.append("call", id=str(number), of="tool", tool="add", arguments={"count": count})
            record.append("result", id=str(number), content=[{"type": "text", "text": text}], is_error=False)
        record.append("call", id="c", of="tool", tool="execute_command", arguments={"command": "echo hi"})
        record.append(
            "result", id="c", content=[{"type": "text", "text": '{"output": ["\\u001b[31mhi\\u001b[0m\\n", true]}'}]
        )
        record.append("call", id="r", of="reward", reward="bought", arguments={"wanted": 2})
        record.append("result", id="r", content=[], structured=1.0, is_error=False)
        record.end("ok", reward=1.0)
        begin = {"environment": {"name": "drawn", "version": "1.0.0"}}
        record = store.record(EpisodeKey("replayed", "drawn"), begin, episode_id="ep-drawn")
        for number in (3, 4):
            record.append("call", id=str(number), of="tool", tool="add", arguments={})
            record.append("result", id=str(number), content=[], structured={"cart": number}, is_error=False)
        record.append("note", text="later")
        record.end("ok")
        with PlatformTrajectories(platform.url, tokens("ann")) as there:
            there.push(store, store.all_episodes())
    return "ep-replayed"


@pytest.fixture
def page(episode: str, browser: Browser, watched: Watched, platform: Served, tokens: Tokens) -> Page:
    opened = watched()
    log_in(opened, platform, tokens("ann"))
    return opened


def test_tasks_are_listed_without_their_answers(page: Page, platform: Served) -> None:
    visit(page, platform, "#/hub/shop?view=Tasks")
    page.get_by_role("button", name="List the tasks").click()
    page.get_by_role("cell", name="Buy 2 apples.").wait_for(timeout=60_000)
    assert "secret-answer" not in page.content()


def test_two_versions_are_compared_file_by_file(page: Page, platform: Served) -> None:
    visit(page, platform, "#/hub/shop?view=Versions")
    page.get_by_role("link", name="compare").first.click()
    page.locator("ins", has_text="New.").wait_for()
    page.get_by_role("heading", name="console/view.js").wait_for()
    assert page.locator("h3 code", has_text="src/shop.py").count() == 0
    page.get_by_role("tab", name="Files").click()
    page.locator("summary", has_text="src/shop.py").click()
    page.locator("pre", has_text="register_tasks").wait_for()


def test_the_owner_grants_and_publishes_and_others_may_not(
    page: Page, watched: Watched, platform: Served, shop: str
) -> None:
    visit(page, platform, "#/hub/shop?view=Access")
    page.get_by_text("Only its owner sees and changes").wait_for()
    admin = watched()
    log_in(admin, platform, platform.first_token, "#/hub/shop?view=Access")
    admin.get_by_label("User", exact=True).fill("bob")
    admin.get_by_role("button", name="Grant").click()
    admin.get_by_role("cell", name="bob").wait_for()
    admin.get_by_role("button", name="Take it back").click()
    admin.get_by_role("button", name="Take it back now?").click()
    admin.get_by_text("Nobody but the owner.").wait_for()
    admin.get_by_role("tab", name="Versions").click()
    admin.locator("summary", has_text="Publishing").click()
    admin.get_by_label("Reason").fill("use another shop")
    admin.get_by_role("button", name="Deprecate").click()
    admin.get_by_text("Deprecated: use another shop").wait_for()


def test_a_replay_marks_the_first_result_that_differs(page: Page, platform: Served, episode: str) -> None:
    visit(page, platform, f"#/episode/{episode}")
    page.get_by_role("button", name="Replay").click()
    replayed = page.get_by_label("Replay", exact=True)
    replayed.get_by_text("Recorded, event 3").wait_for(timeout=60_000)
    assert "reward 1, as recorded" in replayed.inner_text()
    assert page.locator("section[aria-label=Replay] .badge").inner_text() == "different"


def test_terminals_of_an_episode_are_played_back(page: Page, platform: Served, episode: str) -> None:
    visit(page, platform, f"#/episode/{episode}")
    page.get_by_role("button", name="Terminal").click()
    page.locator(".screen", has_text="$ echo hi").wait_for()
    assert page.locator(".screen").inner_text() == "$ echo hi\nhi\n"
    page.get_by_role("button", name="Play", exact=True).click()


def test_an_author_s_view_shows_state_and_has_no_rights(
    page: Page, watched: Watched, platform: Served, episode: str
) -> None:
    visit(page, platform, "#/playground?env=shop@1.1.0")
    page.get_by_role("button", name="Open an instance").click()
    page.locator("main .row a").first.click()
    page.get_by_role("tab", name="View").click()
    frame = page.frame_locator("iframe")
    frame.get_by_text("cart 0").wait_for()
    assert frame.locator("#cart").evaluate("e => getComputedStyle(e).color") == "rgb(1, 2, 3)"
    assert frame.locator("#cart").evaluate("() => self.origin") == "null"
    assert "/console/#/instances/" in page.url
    visit(page, platform, f"#/episode/{episode}")
    page.locator(".windowed-row").nth(2).click()
    page.frame_locator("iframe").get_by_text("event 2 result").wait_for()
    assert len(page.context.pages) == 1


def test_a_layout_is_drawn_beside_an_instance_and_an_episode(page: Page, platform: Served, tokens: Tokens) -> None:
    made = api(platform, tokens("ann"), "/env-instance", {"envName": "drawn"})["id"]
    api(platform, tokens("ann"), f"/instance/{made}/tools/add", {"count": 7})
    visit(page, platform, f"#/instances/{made}?view=View")
    view = page.locator(".layout")
    view.locator(".figure .value", has_text="7").wait_for()
    assert view.locator("h4").all_inner_texts() == ["<img src=x onerror=alert(1)>", "done"]
    assert view.locator(".cells td").count() == 5
    assert view.locator("img").count() == 1  # the label, and none of those that are text
    view.get_by_text("Not there yet.").wait_for()
    view.get_by_role("button", name="Empty it").click()
    view.locator(".figure .value", has_text="0").wait_for()
    visit(page, platform, "#/episode/ep-drawn?at=2")
    page.locator(".layout .figure .value", has_text="3").wait_for()
    page.locator(".windowed-row").nth(5).click()  # a note has no state: that of the last result before it is shown
    page.locator(".layout .figure .value", has_text="4").wait_for()
    assert page.locator(".layout button").count() == 0  # an episode is over
