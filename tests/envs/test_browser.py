"""The browser in sandboxes of the local platform: sites, pages, shapes of other toolsets, MiniWoB++."""

from __future__ import annotations

import asyncio
import importlib.util
import io
import json
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aenv import Environment
from aenv.hub import builtin
from tests.conftest import run

PROGRAMS = ("/usr/lib/chromium/chromium-headless-shell", "/usr/lib/chromium/chromium", "google-chrome")
pytestmark = pytest.mark.skipif(
    not (os.environ.get("AENV_BROWSER") or any(map(shutil.which, PROGRAMS))),
    reason="there is no browser: apt-get install -y chromium-headless-shell",
)
needs_miniwob = pytest.mark.skipif(importlib.util.find_spec("miniwob") is None, reason="pip install --no-deps miniwob")


class Browsing:
    """What an agent does, by words of what it sees."""

    def __init__(self, env: Environment) -> None:
        self.env = env

    async def start(self, task: str = "", seed: int = 1, **more: Any) -> dict[str, Any]:
        started: dict[str, Any] = await self.env.call_function(
            "start", {"task": task, "seed": seed, **more}, timeout=120
        )
        return started

    async def until_downloaded(self, names: list[str]) -> None:
        """Wait for a download, which goes on after the click that began it."""
        async with asyncio.timeout(60):
            while (await self.call("list_downloads")).data["files"] != names:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def call(self, tool: str, **arguments: Any) -> Any:
        result = await self.env.call_tool(tool, arguments, timeout=120)
        assert not result.is_error, f"{tool} {arguments}: {result.text}"
        return result

    async def fails(self, tool: str, **arguments: Any) -> str:
        result = await self.env.call_tool(tool, arguments, timeout=120)
        assert result.is_error, f"{tool} {arguments}: {result.text}"
        return result.text

    async def text(self, tool: str, **arguments: Any) -> str:
        return str((await self.call(tool, **arguments)).text)

    async def ref(self, words: str) -> dict[str, str]:
        found = re.search(r"\[(ref_\d+)\]", await self.text("find", query=words))
        assert found, f"{words}: {await self.text('read_page')}"
        return {"type": "ref", "ref": found[1]}

    async def click(self, words: str) -> str:
        return await self.text("left_click", target=await self.ref(words))

    async def fill(self, words: str, value: Any) -> None:
        await self.call("form_input", target=await self.ref(words), value=value)

    async def score(self) -> Any:
        return (await self.env.call_reward({}, timeout=60))["score"]


@asynccontextmanager
async def browsing(folder: Path | None = None) -> AsyncIterator[Browsing]:
    async with Environment(str(folder or builtin.folder() / "browser")) as env:
        yield Browsing(env)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the environment, for pages of a test's own."""
    made = tmp_path / "browser"
    shutil.copytree(builtin.folder() / "browser", made, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    (made / "pages").mkdir()
    return made


async def buy(page: Browsing, instruction: str) -> None:
    found = re.match(
        r"Order (\d) of '(.+)' with (\w+) shipping to (.+?), (.+?), (\w+)\. Use the coupon (\w+)", instruction
    )
    assert found
    count, product, way, name, street, city, coupon = found.groups()
    await page.click("Search textbox")
    await page.call("type", text=f"{product}\n")
    await page.click(f"link {product}")
    await page.fill("Count spinbutton", count)
    await page.click("Add to cart button")
    for field, value in (("Name", name), ("Street", street), ("City", city), ("Coupon", coupon)):
        await page.fill(f"{field} textbox", value)
    await page.fill("Shipping combobox", way)
    await page.click("Place order button")


async def drag_on_the_board(page: Browsing, instruction: str) -> None:
    number = re.findall(r"ticket (\d+)", instruction)[0]
    await page.click("Board link")
    seen = await page.text("read_page")
    card = re.search(rf'\[(ref_\d+)\]\n\s+text "#{number} ', seen)
    column = re.search(r'region "done" \[(ref_\d+)\]', seen)
    assert card
    assert column
    places = [{"type": "ref", "ref": found[1]} for found in (card, column)]
    await page.call("left_click_drag", start=places[0], target=places[1])
    await page.call("wait", duration=20, text=f"#{number}")


async def undo_the_nonsense(page: Browsing, instruction: str) -> None:
    await page.click("Search textbox")
    await page.call("type", text="bananas\n")
    found = re.findall(r"link .*\[(ref_\d+)\]", await page.text("read_page", filter="interactive"))
    await page.call("left_click", target={"type": "ref", "ref": found[-1]})
    await page.click("History link")
    await page.click("Revert to 1 button")


async def tell_the_mayor(page: Browsing, instruction: str) -> None:
    town = instruction.split("mayor of ")[1].split("?")[0]
    await page.click(f"{town} link")
    mayor = re.search(r"Mayor: (.+)", await page.text("get_page_text"))
    assert mayor
    await page.call("answer", text=mayor[1])


SOLVED = {
    "shop/buy": buy, "tickets/move": drag_on_the_board, "wiki/restore": undo_the_nonsense, "wiki/mayor": tell_the_mayor,
}  # fmt: skip


def test_tasks_of_each_site_are_done_by_what_a_person_does_and_not_without() -> None:
    async def main() -> None:
        async with browsing() as page:
            for task, solve in SOLVED.items():
                started = await page.start(task, seed=2)
                assert (await page.start(task, seed=2))["instruction"] == started["instruction"]
                assert await page.score() == 0.0
                await solve(page, started["instruction"])
                assert await page.score() == 1.0, (task, await page.env.call_reward({}))

    run(main())


FORM = """<!doctype html><title>Form</title><body style="height:3000px">
<label>Name <input id=name onchange="log('change ' + this.value)"></label>
<label>Agree <input type=checkbox onclick="log('agree ' + this.checked)"></label>
<label>Day <input type=date onchange="log('day ' + this.value)"></label>
<label>Size <select multiple onchange="log('size ' + [...this.selectedOptions].map(o => o.value))">
<option>S<option>M<option>L
</select></label>
<label>Paper <input type=file onchange="this.files[0].text().then(t => log('file ' + t))"></label>
<button onclick="log('ask ' + confirm('Sure?'))">Ask</button>
<button onclick="window.open('/other.html')">Open</button>
<a href="/note.txt" download>Note</a>
<div id=where onmousedown="log('button ' + event.button + ' ' + event.ctrlKey)" style="height:40px">place</div>
<iframe srcdoc="<button onclick='this.textContent = `pressed`'>Inside</button>"></iframe>
<p id=said></p><p style="margin-top:2000px"><button onclick="log('deep')">Deep</button></p>
<script>function log(text) { said.textContent += text + "; "; console.log(text) }</script>"""


def test_pages_of_a_folder_of_the_project_are_used_with_every_tool(project: Path) -> None:
    (project / "pages" / "index.html").write_text(FORM)
    (project / "pages" / "other.html").write_text("<title>Other</title><h1>another page</h1>")
    (project / "pages" / "note.txt").write_text("a note")

    async def main() -> None:
        async with browsing(project) as page:
            await page.start("folder/pages", files=["README.md"])
            await page.fill("Name textbox", "Ünal")
            await page.fill("Agree checkbox", True)
            await page.fill("Agree checkbox", True)
            await page.fill("Day", "2026-01-02")
            await page.fill("Size listbox", ["S", "L"])
            assert "no such option; there are S, M, L" in await page.fails(
                "form_input", target=await page.ref("Size listbox"), value="XL"
            )
            paper = await page.ref("Paper file")
            assert "there is no file" in await page.fails("file_upload", target=paper, paths=["/etc/passwd"])
            assert "there is no file" in await page.fails("file_upload", target=paper, paths=["../log"])
            await page.call("file_upload", target=paper, paths=["README.md"])
            assert "it was dismissed" in await page.click("Ask button")
            await page.call("answer_dialogs", accept=True)
            assert "it was accepted" in await page.click("Ask button")
            place = await page.ref("place")
            await page.call("right_click", target=place, modifiers="ctrl")
            await page.click("Inside button")
            assert 'button "pressed"' in await page.text("read_page")
            await page.click("Deep button")
            assert "opened tab_2" in await page.click("Open button")
            await page.call("switch_tab", tab_id="tab_2")
            assert await page.text("get_page_text") == "another page"
            await page.call("close_tab", tab_id="tab_2")
            await page.click("Note link")
            await page.until_downloaded(["README.md", "note.txt"])
            assert await page.text("read_download", name="note.txt") == "a note"
            lines = (await page.text("read_console")).split("\n")
            said = [line.removeprefix("log: ")[:16] for line in lines if line.startswith("log: ")]
            assert said == [
                "change Ünal", "agree true", "day 2026-01-02", "size S,L", "file # browser", "ask false", "ask true",
                "button 2 true", "deep",
            ]  # fmt: skip
            assert "http://pages.test/ 200 text/html" in await page.text("read_network")
            await page.call("navigate", url="http://pages.test/other.html")
            assert "read the page again" in await page.fails("left_click", target=place)
            await page.call("navigate", url="back")
            assert "Sure" not in await page.text("get_page_text")

    run(main())


def test_the_shapes_of_other_toolsets_do_the_same(project: Path) -> None:
    (project / "pages" / "index.html").write_text(
        "<title>Keys</title><input autofocus aria-label=Field style='position:absolute;left:10px;top:10px'>"
        "<button style='position:absolute;left:10px;top:60px' onclick=\"this.textContent='pressed'\">Press</button>"
    )

    async def main() -> None:
        async with browsing(project) as page:
            await page.start("folder/pages", width=400, height=300)
            await page.call("computer", action="left_click", coordinate=[20, 20])
            await page.call("computer", action="type", text="one two")
            await page.call("computer", action="key", text="ctrl+a")
            await page.call("computer", action="type", text="three")
            picture = (await page.call("computer", action="screenshot")).content[0]
            assert picture["type"] == "image"
            assert 'value="three"' in await page.text("find", query="Field")
            batch = [
                {"type": "click", "x": 20, "y": 20, "button": "left"}, {"type": "keypress", "keys": ["CTRL", "A"]},
                {"type": "type", "text": "four"}, {"type": "click", "x": 20, "y": 70, "button": "left"},
            ]  # fmt: skip
            assert (await page.call("openai_computer", actions=batch)).content[0]["type"] == "image"
            assert 'value="four"' in await page.text("find", query="Field")
            assert "pressed" in await page.text("find", query="button")
            assert "is missing" in await page.fails("openai_computer", actions=[{"type": "click"}])
            bid = (await page.ref("Field textbox"))["ref"].removeprefix("ref_")
            seen = json.loads((await page.call("browsergym", action=f"fill('{bid}', 'five')")).content[0]["text"])
            assert 'value="five"' in seen["axtree_txt"]
            assert (seen["focused_element_bid"], seen["last_action_error"]) == (bid, "")
            seen = json.loads((await page.call("browsergym", action="click('77777')")).content[0]["text"])
            assert "read the page again" in seen["last_action_error"]
            assert {tool["name"].split("/")[-1] for tool in await page.env.list_tools()}.isdisjoint(
                {"computer", "openai_computer", "browsergym"}
            )

    run(main())


def test_a_screenshot_is_what_the_page_shows(project: Path) -> None:
    Image = pytest.importorskip("PIL.Image")
    (project / "pages" / "index.html").write_text("<body style='margin:0;background:rgb(200,0,0)'>")

    async def main() -> None:
        async with browsing(project) as page:
            await page.start("folder/pages", width=300, height=200)
            for tool, arguments in (("screenshot", {}), ("zoom", {"region": [0, 0, 30, 20]})):
                import base64

                data = base64.b64decode((await page.call(tool, **arguments)).content[0]["data"])
                picture = Image.open(io.BytesIO(data)).convert("RGB")
                assert picture.getpixel((50, 50)) == (200, 0, 0)
                assert tool == "zoom" or picture.size == (300, 200)

    run(main())


def test_a_browser_that_has_ended_ends_the_episode_and_the_next_has_another_one() -> None:
    async def main() -> None:
        async with browsing() as page:
            await page.start("wiki")
            done = await page.env.exec("kill -9 $(pgrep -f '[r]emote-debugging-pipe')")
            assert done.exit_code == 0, done
            assert "ended" in await page.fails("screenshot")
            await page.start("wiki")
            assert "Welcome" in await page.text("get_page_text")

    run(main())


@needs_miniwob
def test_a_page_script_that_writes_the_reward_of_miniwob_changes_nothing(project: Path) -> None:
    async def main() -> None:
        async with browsing() as page:
            first = await page.start("miniwob/click-button", seed=5)
            assert (await page.start("miniwob/click-button", seed=5))["instruction"] == first["instruction"]
            assert await page.score() == 0.0
            for url in ("javascript:WOB_RAW_REWARD_GLOBAL=1", "data:text/html,<script>opener</script>"):
                assert "only http and https" in await page.fails("navigate", url=url)
            wanted = re.findall(r'"(.+)"', first["instruction"])[0]
            await page.click(f'button "{wanted}"')
            assert await page.score() == 1.0

    run(main())
