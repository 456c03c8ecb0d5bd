"""What an episode and a step in a browser cost: the environment `browser` beside Playwright with the same Chromium.

    python benchmarks/browser/run.py [--runs 20] [--rounds 3] [--at-once 16] [--json FILE]

Needs Linux, chromium-headless-shell, playwright and miniwob. Rounds go around both, so that a busy minute of the
machine hits both. Playwright runs in this process and without a sandbox; ours is called over the SDK, in a sandbox.
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

from playwright.sync_api import sync_playwright

from aenv import Environment, SyncEnvironment
from aenv.hub import builtin

BROWSER = "/usr/lib/chromium/chromium-headless-shell"
KIND, PROJECT = "click-button", str(builtin.folder() / "browser")
CLICK = {"action": "left_click", "coordinate": [300, 200]}
SIZE = {"width": 332, "height": 214}
GAP = 0.2
"""Seconds before an episode and before its first step, in which an agent would think."""
Times = dict[str, list[float]]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


def timed(times: Times, name: str, work: Callable[[], object]) -> None:
    """Do something and keep how many milliseconds it took."""
    began = time.perf_counter()
    work()
    times.setdefault(name, []).append(1000 * (time.perf_counter() - began))


def ours(times: Times, runs: int) -> None:
    """Episodes and steps of the environment."""
    with SyncEnvironment(PROJECT) as env:
        begin = partial(env.call_function, "start", timeout=120)
        begin({"task": f"miniwob/{KIND}", "seed": 0})
        for seed in range(runs):
            time.sleep(GAP)
            timed(times, "reset, MiniWoB++", lambda seed=seed: begin({"task": f"miniwob/{KIND}", "seed": seed}))
            time.sleep(GAP)
            timed(times, "click with screenshot", lambda: env.call_tool("computer", CLICK))
            timed(times, "screenshot", lambda: env.call_tool("screenshot", {}))
            timed(times, "accessibility tree", lambda: env.call_tool("read_page", {}))
        for seed in range(runs):
            time.sleep(GAP)
            timed(times, "reset, own site", lambda seed=seed: begin({"task": "shop/buy", "seed": seed}))


def playwrights(times: Times, runs: int, url: str) -> None:
    """The same with Playwright."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        state = {"context": browser.new_context(viewport=SIZE)}

        def reset(seed: int) -> None:
            state["context"].close()
            state["context"] = browser.new_context(viewport=SIZE)
            page = state["page"] = state["context"].new_page()
            page.goto(url)
            page.evaluate("seed => { Math.seedrandom(String(seed)); core.startEpisodeReal() }", seed)

        def click() -> None:
            state["page"].mouse.click(300, 200)
            state["page"].screenshot()

        reset(0)
        for seed in range(runs):
            time.sleep(GAP)
            timed(times, "reset, MiniWoB++", lambda seed=seed: reset(seed))
            time.sleep(GAP)
            timed(times, "click with screenshot", click)
            timed(times, "screenshot", lambda: state["page"].screenshot())
            timed(times, "accessibility tree", lambda: state["page"].locator("body").aria_snapshot())
        browser.close()


def memory() -> int:
    """Return the memory of all processes of browsers, each shared page counted in part, in MiB."""
    total = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if "headless-shell" in Path(f"/proc/{pid}/cmdline").read_text():
                found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
                total += int(found[1]) if found else 0
        except OSError:
            continue
    return total // 1024


async def many(count: int) -> dict[str, float]:
    """Start instances with a browser each, all at once; return how long it took and what they hold."""
    began, before = time.perf_counter(), memory()
    async with asyncio.TaskGroup() as group:
        made = [group.create_task(_one()) for _ in range(count)]
    envs = [each.result() for each in made]
    took, held = time.perf_counter() - began, memory() - before
    steps = time.perf_counter()
    await asyncio.gather(*(env.call_tool("screenshot", {}, timeout=300) for env in envs))
    stepped = time.perf_counter() - steps
    await asyncio.gather(*(env.release() for env in envs))
    return {"all started, s": took, "a screenshot of each, s": stepped, "memory of each, MiB": held / count}


async def _one() -> Environment:
    env = Environment(PROJECT)
    await env.initialize()
    await env.call_function("start", {"task": "shop/buy"}, timeout=300)
    return env


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    spec = find_spec("miniwob")
    assert spec is not None
    assert spec.origin is not None
    pages = Path(spec.origin).parent / "html"
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(pages)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/miniwob/{KIND}.html"
    results: dict[str, Times] = {"aenv": {}, "playwright": {}}
    for _ in range(given.rounds):
        ours(results["aenv"], given.runs)
        playwrights(results["playwright"], given.runs, url)
    server.shutdown()
    print(subprocess.run([BROWSER, "--version"], capture_output=True, text=True).stdout.strip(), os.getloadavg())
    for name in dict.fromkeys(key for times in results.values() for key in times):
        row = [f"{statistics.median(times[name]):.0f}" if name in times else "-" for times in results.values()]
        print(f"| {name}, p50 ms | {' | '.join(row)} |")
    together = asyncio.run(many(given.at_once)) if given.at_once else {}
    for name, value in together.items():
        print(f"| {given.at_once} at once: {name} | {value:.1f} | - |")
    if given.json:
        given.json.write_text(json.dumps({"times": results, "at_once": together}, indent=2))


if __name__ == "__main__":
    main()
