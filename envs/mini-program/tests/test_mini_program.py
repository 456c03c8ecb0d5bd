"""Unit tests of the environment: no server, no container."""

import base64
import io
import zipfile

import mini_program as app
import pytest
from app_files import AppFiles
from page_checks import check_project, read_page, script_problems

PAGE = '<!doctype html>\n<html lang="en"><meta name="viewport" content="width=device-width"><title>t</title>{}</html>'


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    monkeypatch.setattr(app, "files", AppFiles(tmp_path / "app"))


def test_a_file_is_written_read_listed_and_deleted():
    assert app.write_file("css/app.css", "a {}") == {"success": True, "file_path": "css/app.css", "version": 1}
    assert app.read_file("/css/app.css")["content"] == "a {}"
    assert app.list_files("css")["files"] == ["css/app.css"]
    assert app.delete_file("css/app.css")["success"]
    assert not app.read_file("css/app.css")["success"]


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/..", "", "/", "x\0y", ".history/log.jsonl"])
def test_no_path_leads_out_of_the_project(path):
    assert not app.write_file(path, "x")["success"]
    assert not app.read_file(path)["success"]


def test_no_link_leads_out_of_the_project(tmp_path):
    (tmp_path / "secret").write_text("secret")
    app.files.root.mkdir()
    app.files.root.joinpath("link").symlink_to(tmp_path / "secret")
    app.files.root.joinpath("folder").symlink_to(tmp_path)
    assert not app.read_file("link")["success"]
    assert not app.read_file("folder/secret")["success"]
    assert app.list_files()["files"] == []


def test_every_version_stays():
    app.write_file("a.txt", "one\n")
    app.write_file("a.txt", "two\n")
    assert [row["version"] for row in app.versions("a.txt")] == [1, 2]
    assert app.version_text("a.txt", 1) == "one\n"
    assert "-one\n+two" in app.file_history("a.txt", 1, 2)["diff"]


def test_a_damaged_history_is_read_as_far_as_it_goes(tmp_path):
    app.write_file("a.txt", "one")
    (tmp_path / "secret").write_text("secret")
    with app.files.root.joinpath(".history", "log.jsonl").open("a") as log:
        log.write('nonsense\n{"version": 2, "path": "a.txt", "digest": "../../../secret"}\n')
    assert len(app.versions()) == 1
    assert app.version_text("a.txt", 9) == "one"


def test_files_and_conversation_outlive_the_object():
    app.write_file("a.txt", "kept")
    app.save_chat([{"role": "user", "content": "hello"}])
    again = AppFiles(app.files.root)
    assert again.read("a.txt") == "kept"
    assert again.paths() == ["a.txt"]
    assert app.load_chat() == [{"role": "user", "content": "hello"}]


def test_python_runs_in_a_process_of_its_own():
    assert app.execute_python_code("print(6 * 7)")["stdout"] == "42\n"
    assert app.execute_python_code("raise SystemExit(3)")["exit_code"] == 3


def test_pages_are_validated():
    assert app.validate_html(PAGE.format("<p>x"))["success"]
    assert "line 2: <div> is not closed" in app.validate_html(PAGE.format("<div>"))["errors"]
    assert app.check_responsive_design("<p>", "p { width: 900px }")["problems"][1].startswith("a width of 900px")


@pytest.mark.parametrize("script", ['f("(")', "/[(]/.test(x)", "`${a}` // (", "a = b / c; f(d / e)", "/* ( */ f()"])
def test_a_whole_script_has_no_problems(script):
    assert script_problems(script) == []


@pytest.mark.parametrize("script", ["f(", "f())", "'x", "/* x", "{[}]"])
def test_a_broken_script_has_some(script):
    assert script_problems(script)


def test_a_build_names_missing_files():
    assert check_project({"index.html": PAGE.format('<script src="app.js"></script>')}) == [
        "index.html: there is no app.js"
    ]


def test_selectors_match_elements():
    page = read_page('<form id="add"><input class="a b" type="text"><input></form>')
    assert [page.matches(each) for each in ("input", "form#add", ".b", "input[type=text]", "#none")] == [2, 1, 1, 1, 0]


def test_the_console_of_a_preview_is_read_until_the_files_change(monkeypatch):
    app.write_file("index.html", PAGE.format(""))
    monkeypatch.setenv("MINI_PROGRAM_BROWSER", "/none")
    nothing = {"success": True, "shown": False, "opened": False, "entries": []}
    assert app.log_browser_console() == nothing
    app.report_console(app.app_state()["digest"], [{"level": "error", "text": "x is not defined"}])
    assert app.log_browser_console()["entries"] == [{"level": "error", "text": "x is not defined"}]
    app.write_file("index.html", PAGE.format("<p>"))
    assert not app.log_browser_console()["shown"]


def test_the_app_is_exported_as_a_zip():
    app.write_file("index.html", "x")
    data = base64.b64decode(app.export_zip()["base64"])
    assert zipfile.ZipFile(io.BytesIO(data)).read("index.html") == b"x"


def test_nothing_written_earns_nothing_and_an_unknown_check_is_an_error():
    assert app.app_reward(app.TODO)["score"] == 0.0
    with pytest.raises(ValueError, match="unknown check"):
        app.app_reward([{"kind": "magic"}])
