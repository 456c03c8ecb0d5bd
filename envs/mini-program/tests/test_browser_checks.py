"""The checks that use a browser, as unit tests: no server, no container."""

import mini_program as app
import pytest
from app_files import AppFiles
from browser_checks import NoBrowser, behaves, browsing, console_of, find_browser

needs_browser = pytest.mark.skipif(find_browser() is None, reason="there is no chromium")
PAGE = """<!doctype html><html lang="en"><meta name="viewport" content="width=device-width"><title>t</title>
<form id="add"><input id="what"><button>Add</button></form><ul id="items"></ul><script src="app.js"></script></html>"""
CODE = """
const kept = JSON.parse(localStorage.getItem("kept") ?? "[]");
function show(text) {
  const item = document.createElement("li");
  item.textContent = text;
  item.onclick = () => item.classList.toggle("done");
  document.querySelector("#items").append(item);
}
kept.forEach(show);
document.querySelector("#add").onsubmit = (event) => {
  event.preventDefault();
  const what = document.querySelector("#what");
  if (what.value) show(what.value), kept.push(what.value);
  what.value = "";
  localStorage.setItem("kept", JSON.stringify(kept));
};
"""
ADD = [{"fill": "#what", "text": "tea"}, {"click": "#add button"}, {"expect": "#items li", "count": 1, "text": "tea"}]
FAKE = "document.querySelectorAll = () => [document.body]; Element.prototype.checkVisibility = () => true;"


@needs_browser
def test_an_app_that_works_gets_the_whole_reward(tmp_path, monkeypatch):
    monkeypatch.setattr(app, "files", AppFiles(tmp_path / "app"))
    app.write_file("index.html", PAGE)
    app.write_file("app.js", CODE)
    reward = app.app_reward(app.USED)
    assert reward["score"] == 1.0, reward


@needs_browser
@pytest.mark.parametrize(
    ("code", "why"),
    [("documnt.x", "step 3"), (FAKE, "step 3"), ("while (true);", "the page does not load"), ("close()", "step 3")],
)
def test_an_app_that_does_not_work_fails_with_a_reason(code, why):
    with browsing() as browser:
        assert why in behaves(browser, {"steps": ADD}, {"index.html": PAGE, "app.js": code})


@needs_browser
def test_each_check_has_a_storage_of_its_own():
    files = {"index.html": PAGE, "app.js": CODE}
    with browsing() as browser:
        assert behaves(browser, {"steps": ADD}, files) is None
        assert behaves(browser, {"steps": ADD}, files) is None  # not two items


@needs_browser
def test_the_console_is_read_without_a_preview(tmp_path, monkeypatch):
    monkeypatch.setattr(app, "files", AppFiles(tmp_path / "app"))
    app.write_file("index.html", PAGE)
    app.write_file("app.js", "console.log('hello', 1); fetch('https://example.com/').catch(() => 0); documnt.x")
    said = app.log_browser_console()
    assert (said["success"], said["shown"], said["opened"]) == (False, False, True)
    texts = [each["text"] for each in said["entries"]]
    assert "hello 1" in texts
    assert any("documnt is not defined" in text for text in texts)


@needs_browser
def test_a_malformed_step_is_an_error_and_no_failed_check():
    with browsing() as browser:
        for steps in ([], [{"clack": "#what"}], [{"expect": "<<<"}]):
            with pytest.raises(ValueError, match=r"steps|unknown step|selector"):
                behaves(browser, {"steps": steps}, {"index.html": PAGE})


def test_without_a_browser_there_is_no_reward(tmp_path, monkeypatch):
    monkeypatch.setattr(app, "files", AppFiles(tmp_path / "app"))
    monkeypatch.setenv("MINI_PROGRAM_BROWSER", str(tmp_path / "none"))
    assert [task["id"] for task in app.tasks()] == ["to-do"]
    with pytest.raises(NoBrowser, match="install chromium"):
        app.app_reward(app.USED)
    with pytest.raises(NoBrowser):
        console_of({})
