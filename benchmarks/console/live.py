"""What the overview costs a busy platform, and whether its page stays small: 500 instances, 100 rollouts, ten minutes.

    python benchmarks/console/live.py [--instances 500] [--rollouts 100] [--seconds 600] [--json FILE]

Needs playwright and a chromium. The overview is open for so long; then half minutes with it and without it take turns,
and what the page costs is their difference. The rollouts talk to a model of this program that thinks for five seconds
at each step.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright
from run import CHROMIUM, cpu, heap

THINKS = 5.0
SETTLE = 20.0
WINDOW = 30.0
SAMPLES = 10
"""Episodes of one rollout: a platform runs so many rollouts of one user at a time."""


class Thinker(BaseHTTPRequestHandler):
    """A model that calls a tool, again and again."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        time.sleep(THINKS)
        call = {"id": f"c{time.time_ns()}", "type": "function", "function": {"name": "ask_name", "arguments": "{}"}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        body = json.dumps({"id": "x", "object": "chat.completion", "model": "m", "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *given: object) -> None:
        """Say nothing."""


@contextmanager
def thinking() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Thinker)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, int]]:
    """Run a platform; its address and process."""
    places = {name: folder / name for name in ("data", "run", "cache")}
    for each in places.values():
        each.mkdir(mode=0o700)
    own = {"XDG_DATA_HOME": str(places["data"]), "XDG_RUNTIME_DIR": str(places["run"]), "HOME": str(folder)}
    variables = {**os.environ, **own, "XDG_CACHE_HOME": str(places["cache"])}
    for name in ("AENV_SYSTEM_URL", "AENV_HUB_URL"):
        variables.pop(name, None)
    command = [sys.executable, "-m", "aenv.cli", "serve", "--port", "0", "--no-auth", "--output", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as process:
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or lines[-1] != "}\n":
            lines.append(process.stdout.readline())
            assert lines[-1], "the platform did not start"
        try:
            yield json.loads("".join(lines))["url"], process.pid
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(120)


def ask(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)["data"]


def share(process: int, seconds: float) -> float:
    """Percent of a core that a process uses in so many seconds."""
    used, began = cpu(process), time.monotonic()
    time.sleep(seconds)
    return round(100 * (cpu(process) - used) / (time.monotonic() - began), 2)


def fill(url: str, model: str, instances: int, rollouts: int) -> None:
    for _ in range(instances):
        ask(f"{url}/env-instance", {"envName": "hello-env", "ttl": "2h", "keep_alive": True})
    for number in range(0, rollouts, SAMPLES):
        wanted = {
            "environment": "hello-env",
            "task": {"id": "greet"},
            "samples": SAMPLES,
            "concurrency": SAMPLES,
            "model": {"name": "m", "url": model, "stream": False},
            "budget": {"steps": 10_000, "seconds": 7200},
            "request_id": f"live-{number}",
            "detached": True,
            "trace": False,
        }
        ask(f"{url}/rollouts?stream=false", wanted)


def open_overview(page: Page, url: str, process: int, seconds: int) -> dict[str, Any]:
    page.goto(f"{url}/console/")
    page.get_by_text("Creates per second").wait_for(timeout=60_000)
    time.sleep(SETTLE)
    heaps, used, began = [heap(page)], cpu(process), time.monotonic()
    for _ in range(10):
        page.wait_for_timeout(seconds * 100)
        heaps.append(heap(page))
    spent = 100 * (cpu(process) - used) / (time.monotonic() - began)
    nodes = page.evaluate("() => document.querySelectorAll('*').length")
    return {"heap, MB, ten times": heaps, "nodes": nodes, "server, % of a core": round(spent, 2)}


def in_turn(page: Page, url: str, process: int, pairs: int) -> list[tuple[float, float]]:
    """The server's CPU with the overview open and without, in turn: the rollouts' own use changes over the minutes."""
    found = []
    for _ in range(pairs):
        page.goto(f"{url}/console/")
        page.get_by_text("Creates per second").wait_for(timeout=60_000)
        began, used = time.monotonic(), cpu(process)
        page.wait_for_timeout(WINDOW * 1000)
        shown = round(100 * (cpu(process) - used) / (time.monotonic() - began), 2)
        page.goto("about:blank")
        found.append((shown, share(process, WINDOW)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=500)
    parser.add_argument("--rollouts", type=int, default=100, help="Episodes of rollouts, at the same time.")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--pairs", type=int, default=6, help="Half minutes with the page, and without.")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory(prefix="aenv-l-", ignore_cleanup_errors=True) as name,
        thinking() as model,
        serving(Path(name)) as (url, process),
        sync_playwright() as driver,
    ):
        fill(url, model, given.instances, given.rollouts)
        time.sleep(SETTLE)
        found["episodes running"] = sum(each["running"] for each in ask(f"{url}/rollouts"))
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        found["with it"] = open_overview(page, url, process, given.seconds)
        found["figures of the page"] = page.locator("#figures .value").first.inner_text()
        found["in turn, with and without it, % of a core"] = in_turn(page, url, process, given.pairs)
        browser.close()
        found["episodes running at the end"] = sum(each["running"] for each in ask(f"{url}/rollouts"))
    found["load"] = os.getloadavg()
    print(json.dumps(found, indent=2))
    if given.json:
        given.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
