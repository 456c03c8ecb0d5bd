"""An agent writes a small web app: files with history, checks, and a preview whose console it can read.

The tools are for the agent. The functions are for the page that shows the app (the console's IDE) and for trainers.
"""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from app_files import AppFiles, encoded
from browser_checks import behaves, browsing, console_of, find_browser
from page_checks import check_project, passes, read_page, responsive_problems

from aenv import end_programs, register_function, register_reward, register_tasks, register_tool

STORAGE = Path("/home/admin/data")
"""Where a service's storage is mounted: files there outlive the instance."""
SECONDS = 10.0
MAX_OUTPUT = 20_000
MAX_ENTRIES = 200
MAX_CHAT = 2 << 20


def _folder() -> Path:
    given = os.environ.get("MINI_PROGRAM_DIR")
    if given:
        return Path(given)
    return STORAGE / "app" if STORAGE.is_dir() and os.access(STORAGE, os.W_OK) else Path("app-files")


files = AppFiles(_folder())
_shown: dict[str, Any] = {"digest": None, "entries": []}
"""What the preview's console said, and of which state of the files."""


@register_tool
def read_file(file_path: str) -> dict[str, Any]:
    """Read a file of the app.

    Args:
        file_path: Such as "index.html" or "css/app.css".
    """
    try:
        return {"success": True, "file_path": file_path, "content": files.read(file_path)}
    except (OSError, ValueError) as error:
        return {"success": False, "error": str(error)}


@register_tool
def write_file(file_path: str, content: str) -> dict[str, Any]:
    """Write a file of the app, with the folders that are missing. What it was before stays in the history.

    Args:
        file_path: Such as "index.html" or "css/app.css".
        content: All of its text.
    """
    try:
        return {"success": True, "file_path": file_path, "version": files.write(file_path, content)}
    except (OSError, ValueError) as error:
        return {"success": False, "error": str(error)}


@register_tool
def list_files(directory: str = "/") -> dict[str, Any]:
    """List the files of the app.

    Args:
        directory: Only those below this folder.
    """
    try:
        return {"success": True, "files": files.paths(directory)}
    except ValueError as error:
        return {"success": False, "error": str(error)}


@register_tool
def delete_file(file_path: str) -> dict[str, Any]:
    """Delete a file of the app; its versions stay in the history.

    Args:
        file_path: The file.
    """
    try:
        return {"success": True, "version": files.remove(file_path)}
    except (OSError, ValueError) as error:
        return {"success": False, "error": str(error)}


@register_tool
def file_history(file_path: str = "", first: int = 0, second: int = 0) -> dict[str, Any]:
    """List the versions of a file or of all files; with two versions, what changed between them.

    Args:
        file_path: The file; empty: all.
        first: Version to compare; 0: before there was any.
        second: Version to compare with; 0: only list.
    """
    try:
        if second:
            return {"success": True, "diff": files.difference(file_path, first, second)}
        return {"success": True, "versions": files.history(file_path)}
    except (OSError, ValueError) as error:
        return {"success": False, "error": str(error)}


@register_tool
def execute_python_code(code: str) -> dict[str, Any]:
    """Run Python code in a process of its own, in the folder of the app, for at most ten seconds.

    Args:
        code: The program.
    """
    try:
        files.root.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [sys.executable, "-I", "-c", code], cwd=files.root, capture_output=True, text=True, errors="replace",
            timeout=SECONDS, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"success": False, "error": f"it took longer than {SECONDS:g} s"}
    except (OSError, ValueError) as error:
        return {"success": False, "error": str(error)}
    output = {"stdout": done.stdout[:MAX_OUTPUT], "stderr": done.stderr[-MAX_OUTPUT:], "exit_code": done.returncode}
    return {"success": done.returncode == 0, **output}


@register_tool
def validate_html(html_content: str) -> dict[str, Any]:
    """Say what is wrong with a page: elements that are not closed, ids used twice, missing title or language.

    Args:
        html_content: The page.
    """
    problems = read_page(html_content).problems
    return {"success": not problems, "errors": problems}


@register_tool
def check_responsive_design(html_content: str, css_content: str | None = None) -> dict[str, Any]:
    """Say what keeps a page from fitting a phone.

    Args:
        html_content: The page.
        css_content: Its styles, if they are in another file.
    """
    problems = responsive_problems(html_content, css_content or "")
    return {"success": not problems, "problems": problems}


@register_tool
def build_app() -> dict[str, Any]:
    """Check the whole app: whether there is an index.html, all files that it names, and no broken page or script."""
    problems = check_project(files.texts())
    return {"success": not problems, "errors": problems, "files": files.paths()}


@register_tool
def log_browser_console() -> dict[str, Any]:
    """Read what the browser's console said of the app as it is now.

    `shown` is true if somebody has the preview open; else the app is opened in a browser of this machine, if there is
    one (`opened`).
    """
    shown = _shown["digest"] == files.digest()
    entries = _shown["entries"] if shown else []
    opened = not shown and find_browser() is not None and "index.html" in files.paths()
    if opened:
        entries = console_of(files.texts())
    success = not any(each["level"] == "error" for each in entries)
    return {"success": success, "shown": shown, "opened": opened, "entries": entries}


@register_function
def app_state() -> dict[str, Any]:
    """Return all files, a digest of them, and what a build says."""
    texts = files.texts()
    return {"files": texts, "digest": files.digest(), "errors": check_project(texts), "versions": len(files.history())}


@register_function
def save_file(file_path: str, content: str) -> int:
    """Write a file as the user; return its version."""
    return files.write(file_path, content, by="user")


@register_function
def versions(file_path: str = "") -> list[dict[str, Any]]:
    """Return the history of a file, or of all."""
    return files.history(file_path)


@register_function
def version_text(file_path: str, version: int) -> str:
    """Return a file as it was."""
    return files.version(file_path, version)


@register_function
def report_console(digest: str, entries: list[dict[str, Any]]) -> int:
    """Take what the console of a preview said of the files with this digest; return how many entries are kept."""
    kept = [
        {"level": str(each.get("level"))[:20], "text": str(each.get("text"))[:2000]} for each in entries[-MAX_ENTRIES:]
    ]
    _shown.update(digest=digest, entries=kept)
    return len(kept)


@register_function
def load_chat() -> list[dict[str, Any]]:
    """Return the conversation that was kept with the files."""
    place = files.chat
    found = json.loads(place.read_text()) if place.is_file() else []
    return found if isinstance(found, list) else []


@register_function
def save_chat(messages: list[dict[str, Any]]) -> int:
    """Keep a conversation with the files; return how many messages it has."""
    text = json.dumps(messages)
    if len(text) > MAX_CHAT:
        raise ValueError(f"a conversation may have {MAX_CHAT} bytes")
    files.chat.write_text(text)
    return len(messages)


@register_function
def export_zip() -> dict[str, str]:
    """Return the app as a zip, in base64."""
    return {"name": "app.zip", "base64": encoded(files.as_zip())}


@register_reward
def app_reward(checks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the share of checks that the app passes.

    The files are read; only `browser` runs them, in a browser whose scripts cannot reach the checks. Programs that the
    agent left behind are ended first.

    Args:
        checks: Each with a `kind`: `file` (`path`), `builds`, `element` (`select`, `count`), `text` (`pattern`),
            `responsive`, `browser` (`steps`, `width`).
    """
    end_programs()
    texts = files.texts()
    results = [
        {**check, "passed": passes(check, texts)} if check.get("kind") != "browser" else dict(check) for check in checks
    ]
    seen = [check for check in results if check.get("kind") == "browser"]
    with browsing() if seen else nullcontext() as browser:
        for check in seen:
            why = behaves(browser, check, texts)
            check.update({"passed": why is None} | ({"why": why} if why else {}))
    return {"score": sum(each["passed"] for each in results) / max(1, len(results)), "checks": results}


@register_tasks
def tasks():
    """List the tasks."""
    yield {
        "id": "to-do",
        "instruction": (
            "Write a to-do list as a web app: index.html with a form (id add) that has a text input (id what), and a "
            "list (id items); styles in style.css and the program in app.js. A click on an item marks it as done. "
            "It must fit a phone."
        ),
        "reward": {"arguments": {"checks": TODO}},
    }
    if find_browser():
        yield {
            "id": "to-do-used",
            "instruction": (
                "Write a to-do list as a web app: index.html with a form (id add) that has a text input (id what) and "
                "a button, and a list (id items). Adding puts the text into the list as an li and empties the input; "
                "an empty text adds nothing. A click on an item gives it the class done. Items are there again after a "
                "reload. It must fit a phone. It is graded in a browser."
            ),
            "reward": {"arguments": {"checks": USED}},
        }


TODO = [
    {"kind": "builds"},
    {"kind": "element", "select": "form#add"},
    {"kind": "element", "select": "input#what"},
    {"kind": "element", "select": "#items"},
    {"kind": "element", "select": "script[src=app.js]"},
    {"kind": "file", "path": "style.css"},
    {"kind": "text", "path": "app.js", "pattern": "addEventListener"},
    {"kind": "text", "path": "app.js", "pattern": "done"},
    {"kind": "responsive"},
]
USED = [
    {"kind": "builds"},
    {"kind": "responsive"},
    {
        "kind": "browser",
        "steps": [
            {"fill": "#what", "text": "tea & <b>eggs</b>"},
            {"click": "#add button"},
            {"expect": "#items li", "count": 1, "text": "tea & <b>eggs</b>"},
            {"expect": "#what", "value": ""},
            {"click": "#add button"},
            {"fill": "#what", "text": "bread"},
            {"press": "Enter"},
            {"expect": "#items li", "count": 2, "text": "bread"},
            {"click": "#items li"},
            {"expect": "#items li.done", "count": 1},
            {"no_errors": True},
        ],
    },
    {
        "kind": "browser",
        "width": 390,
        "steps": [
            {"fill": "#what", "text": "kept"},
            {"press": "Enter"},
            {"expect": "#items li", "count": 1},
            {"reload": True},
            {"expect": "#items li", "count": 1, "text": "kept"},
            {"no_errors": True},
        ],
    },
]
