"""What the console costs: first paint, bytes moved, long episodes, long lists, and a page that stays open.

    python benchmarks/console/run.py [--events 20000,300000] [--episodes 20000] [--live 60] [--json FILE]

Needs playwright and a chromium. All is recorded in a temporary folder and shown by `aenv console`; `--live` keeps
the overview open for so many seconds and reports the page's heap and the CPU of the server behind it.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from aenv.trajectory import EpisodeKey, RunRecord, TrajectoryStore

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
MOVED = "() => performance.getEntries().reduce((n, e) => n + (e.transferSize || 0), 0)"
PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"


def fill(folder: Path, sizes: list[int], episodes: int) -> None:
    os.environ["XDG_DATA_HOME"] = str(folder)
    with TrajectoryStore.open() as store:
        store.begin_run(RunRecord("long", "Long episodes"))
        for size in sizes:
            record = store.record(
                EpisodeKey("long", f"task-{size}"), {"environment": {"name": "bench"}}, episode_id=f"ep-{size}"
            )
            for number in range((size - 2) // 2):
                record.append(
                    "call", id=str(number), of="tool", tool="run", arguments={"command": f"make test-{number}"}
                )
                text = f"line {number}: " + "what the tool wrote " * 12
                record.append("result", id=str(number), content=[{"type": "text", "text": text}], is_error=False)
            record.end("ok", reward=1.0)
        store.begin_run(RunRecord("many", "Many episodes"))
        for number in range(episodes):
            key = EpisodeKey("many", f"task-{number // 8}", number % 8)
            store.record(key, {"environment": {"name": "bench"}}).end("ok", reward=float(number % 3 == 0))


def timed(page: Page, address: str, ready: str) -> float:
    """Milliseconds until a selector is there, from another page of the same console."""
    page.goto(f"{page.url.partition('#')[0]}#/hub")
    page.locator("h1", has_text="Hub").wait_for()
    began = time.perf_counter()
    page.evaluate("(hash) => { location.hash = hash }", address)
    page.locator(ready).first.wait_for(timeout=120_000)
    return round((time.perf_counter() - began) * 1000, 1)


def heap(page: Page) -> float:
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")["usedSize"]
    session.detach()
    return round(used / 1e6, 2)


def cpu(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(browser: Browser, link: str, process: int, sizes: list[int], live: int) -> dict[str, Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto(link)
    page.get_by_text("Creates per second").wait_for(timeout=60_000)
    found: dict[str, Any] = {"first visit, bytes": page.evaluate(MOVED)}
    paints = []
    for _ in range(5):
        page.reload()
        page.get_by_text("Creates per second").wait_for()
        paints.append(page.evaluate(PAINT))
    found["first paint, ms (median of 5)"] = sorted(paints)[2]
    for size in sizes:
        opened = sorted(timed(page, f"#/episode/ep-{size}", ".windowed-row .what:not(:empty)") for _ in range(3))[1]
        began = time.perf_counter()
        page.locator(".windowed").focus()
        page.keyboard.press("End")
        page.locator(f"#row-{size - 1} .what:not(:empty)").wait_for(timeout=60_000)
        jumped = round((time.perf_counter() - began) * 1000, 1)
        nodes = page.evaluate("() => document.querySelectorAll('*').length")
        found[f"episode of {size:,} events"] = {
            "open, ms": opened,
            "jump to its end, ms": jumped,
            "nodes": nodes,
            "heap, MB": heap(page),
        }
    found["run of many episodes, ms"] = timed(page, "#/runs/many", ".figure .value")
    found["heap after it, MB"] = heap(page)
    rest = page.get_by_role("button", name="Read all")
    if rest.is_visible():
        began = time.perf_counter()
        rest.click()
        page.locator(".note").first.wait_for(state="hidden", timeout=120_000)
        found["all of its episodes, ms"] = round((time.perf_counter() - began) * 1000)
        found["heap with all of them, MB"] = heap(page)
    if live:
        page.goto(f"{page.url.partition('#')[0]}#/")
        page.get_by_text("Creates per second").wait_for()
        page.wait_for_timeout(5000)
        before, used, began = heap(page), cpu(process), time.monotonic()
        page.wait_for_timeout(live * 1000)
        share = 100 * (cpu(process) - used) / (time.monotonic() - began)
        found[f"overview open for {live} s"] = {
            "heap before, MB": before,
            "after, MB": heap(page),
            "server, % of a core": round(share, 2),
        }
    context.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", default="20000,300000")
    parser.add_argument("--episodes", type=int, default=20_000)
    parser.add_argument("--live", type=int, default=60)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    sizes = [int(each) for each in given.events.split(",")]
    with tempfile.TemporaryDirectory(prefix="aenv-b-") as folder:
        places = {name: Path(folder, name) for name in ("data", "run", "cache")}
        for each in places.values():
            each.mkdir(mode=0o700)
        fill(places["data"], sizes, given.episodes)
        own = {"XDG_RUNTIME_DIR": str(places["run"]), "XDG_CACHE_HOME": str(places["cache"]), "HOME": folder}
        variables = {**os.environ, **own}
        for name in ("AENV_SYSTEM_URL", "AENV_HUB_URL"):
            variables.pop(name, None)
        command = [sys.executable, "-m", "aenv.cli", "console", "--output", "json"]
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as process,
            sync_playwright() as driver,
        ):
            assert process.stdout is not None
            lines: list[str] = []
            while not lines or lines[-1] != "}\n":
                lines.append(process.stdout.readline())
                assert lines[-1], "the console did not start"
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            try:
                found = measure(browser, json.loads("".join(lines))["url"], process.pid, sizes, given.live)
            finally:
                browser.close()
                process.send_signal(signal.SIGINT)
                subprocess.run([sys.executable, "-m", "aenv.cli", "local", "stop"], env=variables, check=False)
    found["load"] = os.getloadavg()[0]
    print(json.dumps(found, indent=2))
    if given.json:
        given.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
