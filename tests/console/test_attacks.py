"""Hostile content: an environment, an instance and a trajectory that try to run something in the console."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aenv.hub.local_hub import LocalHub
from aenv.hub.open_hub import HubLocation, open_catalog
from aenv.schema.envhub import PushRequest, Schemas
from aenv.trajectory import EpisodeKey, RunRecord, TrajectoryStore
from aenv.trajectory.platform_trajectories import PlatformTrajectories
from tests.conftest import fetch
from tests.console.conftest import log_in, visit
from tests.hub.parts import bundle_of
from tests.platform.parts import Served, serving
from tests.platform.test_tenants import bearer

if TYPE_CHECKING:
    from playwright.sync_api import Page

RUN = "window.pwned = (window.pwned || 0) + 1"
SCRIPTS = (
    f"<script>{RUN}</script><img src=x onerror='{RUN}'><svg onload='{RUN}'>"
    f"<iframe srcdoc='<script>parent.{RUN}</script>'>"
    f"</textarea></pre><a href='javascript:{RUN}'>a</a>{{{{constructor.constructor('{RUN}')()}}}}"
)
ESCAPES = "\x1b]0;title\x07\x1b[31mred\x1b[0m\x1b]8;;javascript:1\x07link\x1b]8;;\x07"
ESCAPES += "\x1b[2J\u202egnp.exe\x00\x9b31m\x1bPq#0\x1b\\"
SVG = "PHN2ZyB4bWxucz0iaHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmciIG9ubG9hZD0id2luZG93LnB3bmVkPTEiLz4="
LINKS = f"[x](javascript:{RUN}) [y](data:text/html,<script>{RUN}</script>)"
README = f"# {SCRIPTS}\n\n{LINKS}\n\n```\n{SCRIPTS}\n```\n| {SCRIPTS} |\n"
TEXT = SCRIPTS + ESCAPES

ENV = f'''
from aenv import register_reward, register_tool

TEXT = {TEXT!r}


@register_tool
def attack() -> str:
    """Answer and write hostile text."""
    print(TEXT, flush=True)
    return TEXT


@register_reward
def reward() -> dict:
    return {{TEXT: 1.0}}
'''


@pytest.fixture(scope="module")
def platform(published: Path) -> Iterator[Served]:
    asyncio.run(publish_hostile(published))
    with serving(published) as served:
        yield served


async def publish_hostile(data: Path) -> None:
    hub = LocalHub(open_catalog(HubLocation.of(data=data)))
    bundle, blobs = bundle_of("hostile", "1.0.0", {"src/env.py": ENV.encode()}, description=TEXT[:1000])
    schema = {"type": "object", "properties": {SCRIPTS: {"type": "string", "description": SCRIPTS, "enum": [SCRIPTS]}}}
    tools = [{"name": "attack", "description": SCRIPTS, "inputSchema": schema}]
    try:
        for digest in await hub.missing(list(blobs)):
            await hub.put_blob(digest, blobs[digest])
        wanted = PushRequest(
            bundle=bundle.model_dump(), description=SCRIPTS, readme=README, schemas=Schemas(tools=tools), public=True
        )
        await hub.push(wanted, False)
    finally:
        await hub.close()


@pytest.fixture(scope="module")
def episode(platform: Served, tokens: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """An episode every field of which is hostile, huge or malformed."""
    with TrajectoryStore.open(tmp_path_factory.mktemp("hostile")) as store:
        store.begin_run(RunRecord("hostile", SCRIPTS, {"environment": SCRIPTS, "agent": {"name": SCRIPTS}}))
        names = {
            "environment": {"name": SCRIPTS, "version": SCRIPTS},
            "agent": {"name": SCRIPTS},
            "model": {"name": SCRIPTS},
        }
        record = store.record(
            EpisodeKey("hostile", SCRIPTS), {**names, "task": {"instruction": SCRIPTS}}, episode_id="ep-hostile"
        )
        record.append(
            "message", role=SCRIPTS, content=TEXT, tool_calls=[{"function": {"name": SCRIPTS, "arguments": "{" * 500}}]
        )
        record.append("message", role="user", content=[{"type": "image", "mimeType": "image/svg+xml", "data": SVG},
                      {"type": "image_url", "image_url": {"url": f"javascript:{RUN}"}},
                      None, 7, {"text": TEXT}])  # fmt: skip
        record.append(
            "message", role="assistant", content={"odd": TEXT}, tool_calls="none", token_ids=[SCRIPTS], logprobs=["x"]
        )
        record.append("call", id="1", of=SCRIPTS, arguments=[[["deep"] * 3]] * 50)
        record.append("result", id="1", content="x" * 900_000, is_error=True, fault=SCRIPTS, error={"message": TEXT})
        record.append("note", text=SCRIPTS, data=TEXT)
        record.end("policy", reward={SCRIPTS: 1.0}, failure_reason=TEXT)
        with PlatformTrajectories(platform.url, tokens("ann")) as there:
            there.push(store, store.all_episodes())
    return "ep-hostile"


def nothing_ran(page: Page) -> None:
    assert page.evaluate("window.pwned") is None
    assert page.locator("main iframe, main script, main object, main embed").count() == 0
    assert page.evaluate(
        "[...document.querySelectorAll('main a')].every(a => /^(#|https?:)/.test(a.getAttribute('href')))"
    )
    shown = page.evaluate("document.body.innerText")
    assert not [c for c in ("\x1b", "\x9b", "\u202e", "\x00") if c in shown]


def test_a_hostile_environment_runs_nothing(
    episode: str, watched: Callable[..., Page], platform: Served, tokens: Callable[..., str]
) -> None:
    page = watched()
    log_in(page, platform, tokens("ann"))
    for address in ("#/hub", "#/hub/hostile"):
        visit(page, platform, address)
        page.locator("main", has_text="onerror").wait_for()
        nothing_ran(page)
    visit(page, platform, "#/playground?env=hostile")
    page.get_by_role("button", name="Open an instance").click()
    offer = page.locator("details.offer", has_text="attack")
    offer.locator("summary").first.click()
    offer.get_by_role("button", name="Call").click()
    offer.locator(".answer pre").wait_for()
    nothing_ran(page)
    page.locator("main .row a").first.click()
    page.locator(".log", has_text="onerror").wait_for()
    nothing_ran(page)


def test_a_hostile_trajectory_runs_nothing(
    episode: str, watched: Callable[..., Page], platform: Served, tokens: Callable[..., str]
) -> None:
    page = watched()
    log_in(page, platform, tokens("ann"))
    for address in ("#/runs", "#/runs/hostile"):
        visit(page, platform, address)
        page.locator("main", has_text="onerror").first.wait_for()
        nothing_ran(page)
    page.locator("main table a").first.click()
    page.locator(".sample").wait_for()
    nothing_ran(page)
    visit(page, platform, f"#/episode/{episode}")
    page.locator(".windowed-row").first.wait_for()
    for number in range(page.locator(".windowed-row").count()):
        page.locator(".windowed-row").nth(number).click()
        page.locator(".detail h2", has_text=f"{number} ·").wait_for()
        page.evaluate("document.querySelectorAll('.detail details').forEach(each => each.open = true)")
        nothing_ran(page)
    for name in ("Trace", "Terminal"):
        page.get_by_role("button", name=name, exact=True).click()
    page.get_by_label("Trace of the episode").locator("tbody tr").first.wait_for()
    nothing_ran(page)


def test_a_hostile_address_shows_an_error(
    episode: str, watched: Callable[..., Page], platform: Served, tokens: Callable[..., str]
) -> None:
    page = watched()
    log_in(page, platform, tokens("ann"))
    for address in (
        f"#/{SCRIPTS}",
        "#/instances/..%2f..%2ftokens",
        "#/hub/%00",
        "#/episode/%E0%A4%A",
        "#/runs/x?with=%22%3E",
    ):
        visit(page, platform, address)
        nothing_ran(page)


def test_a_page_that_an_instance_serves_runs_in_no_origin(
    episode: str, watched: Callable[..., Page], platform: Served, published: Path
) -> None:
    with serving(published, auth=False) as served:
        made = fetch(served.url, "/env-instance", {"envName": "counter"}, headers=bearer("x"))[1]["data"]["id"]
        page = watched()
        page.goto(f"{served.url}/instance/{made}/tools")
        assert page.evaluate("self.origin") == "null"
