"""The console's files and headers, without a browser."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from subprocess import run

import pytest

from aenv.console import assets
from aenv.console.mount import mounted
from aenv.http.messages import Answer, Request, Response, Stream
from tests.platform.parts import Served, serving

STATIC = assets.FOLDER
OWN = [path for path in STATIC.rglob("*.js") if "vendor" not in path.parts]
LIMIT = 150_000
HOSTILE_CALLS = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc =")


async def api(request: Request) -> Answer:
    """Answer as an instance might: with a page."""
    return Response(200, b"<script>1</script>", b"content-type: text/html\r\n")


def ask(path: str, method: str = "GET", *, only_loopback: bool = True, **headers: str) -> Response:
    request = Request()
    request.method, request.path, request.target = method, path, path.encode()
    request.headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    answer = asyncio.run(mounted(api, only_loopback=only_loopback)(request))  # type: ignore[arg-type]
    assert isinstance(answer, Response)
    return answer


def test_the_page_runs_no_inline_script_and_is_shown_in_no_frame() -> None:
    page = ask("/console/")
    assert page.status == 200
    assert b"script-src 'self';" in page.headers
    assert b"unsafe" not in page.headers
    assert b"frame-ancestors 'none'" in page.headers
    assert b"x-content-type-options: nosniff" in page.headers
    text = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", text)
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", text)


def test_no_module_turns_text_into_markup() -> None:
    found = {path.name: [each for each in HOSTILE_CALLS if each in path.read_text()] for path in OWN}
    assert not {name: each for name, each in found.items() if each}


def test_all_files_together_stay_small() -> None:
    own = [asset for name, asset in assets.load().items() if not name.startswith("vendor/")]
    assert 30_000 < sum(len(asset.compressed) for asset in own) < LIMIT


def test_a_file_is_sent_once_and_compressed() -> None:
    first = ask("/console/main.js", accept_encoding="gzip, br")
    assert b"content-encoding: gzip" in first.headers
    tag = re.search(rb'etag: ("[^"]+")', first.headers)
    assert tag is not None
    assert ask("/console/main.js", if_none_match=tag[1].decode()).status == 304


@pytest.mark.parametrize(
    "path", ["/console/../mount.py", "/console/%2e%2e/mount.py", "/console/none.js", "/console//etc/passwd"]
)
def test_nothing_but_the_console_is_served(path: str) -> None:
    assert ask(path).status == 404


def test_a_change_is_refused() -> None:
    assert ask("/console/", "POST").status == 405


def test_another_name_of_this_machine_is_refused() -> None:
    assert ask("/console/", host="evil.example").status == 403
    assert ask("/console/", host="127.0.0.1:8080").status == 200
    assert ask("/console/", only_loopback=False, host="aenv.example").status == 200


def test_the_settings_say_where_traces_are() -> None:
    assert json.loads(ask("/console/settings.json").body) == {"trace_url": ""}


def test_the_root_leads_browsers_to_the_console() -> None:
    assert b"location: console/" in ask("/", accept="text/html").headers
    assert ask("/", accept="*/*").body == b"<script>1</script>"


def test_an_answer_of_the_api_that_a_browser_opens_is_sandboxed() -> None:
    shown = ask("/instance/x/page", accept="text/html,application/xhtml+xml")
    assert b"content-security-policy: sandbox;" in shown.headers
    assert b"sandbox" not in ask("/instance/x/page", accept="application/json").headers


def test_a_streamed_answer_is_sandboxed_as_well() -> None:
    async def stream(scope: object, receive: object, send: Callable[..., object]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})  # type: ignore[misc]

    async def streaming(request: Request) -> Answer:
        return Stream(stream)  # type: ignore[arg-type]

    async def main() -> list[dict[str, object]]:
        request, sent = Request(), []
        request.method, request.path, request.headers = "GET", "/instance/x", [(b"accept", b"text/html")]
        answer = await mounted(streaming, only_loopback=True)(request)
        assert isinstance(answer, Stream)

        async def send(message: dict[str, object]) -> None:
            sent.append(message)

        await answer.app({}, None, send)  # type: ignore[arg-type]
        return sent

    assert b"content-security-policy" in dict(asyncio.run(main())[0]["headers"])  # type: ignore[call-overload]


def test_a_platform_without_a_console_has_no_such_path(published: Path) -> None:
    def status(served: Served) -> str:
        command = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", f"{served.url}/console/"]
        return run(command, capture_output=True, text=True, check=True).stdout

    with serving(published, "--no-console", auth=False) as served:
        assert status(served) == "404"


def test_the_wheel_has_all_files(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "uv", "build", "--wheel", "-o", str(tmp_path), str(root)]
    done = run(command, capture_output=True, text=True)
    if done.returncode != 0 and "hatchling" in done.stderr:
        pytest.skip("uv cannot fetch hatchling to build a wheel: pip download hatchling")
    assert done.returncode == 0, done.stderr
    wheel = next(tmp_path.glob("*.whl"))
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
    files = [path for path in STATIC.rglob("*") if path.is_file()]
    assert {f"aenv/console/static/{path.relative_to(STATIC).as_posix()}" for path in files} <= names
