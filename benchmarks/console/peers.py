"""The same long episodes in the console and in `inspect view`: ready, first paint, bytes moved, and the episode itself.

    python benchmarks/console/peers.py --inspect PATH [--events 20000,300000] [--json FILE]

`PATH` is the program `inspect` of an environment with inspect_ai. The episodes are recorded in a temporary folder;
`aenv trajectory export` writes them for inspect, and `inspect log convert` into its own format. Each has a browser, a
profile and a server of its own, one after the other.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright
from playwright.sync_api import TimeoutError as Late
from run import CHROMIUM, PAINT, fill, heap

PATIENCE = 180_000
FIRST = "line 0: what the tool wrote"


class Watched:
    """A page that counts the bytes it gets over the network."""

    def __init__(self, browser: Browser) -> None:
        self.page: Page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
        self.moved = 0
        session = self.page.context.new_cdp_session(self.page)
        session.send("Network.enable")
        session.on("Network.loadingFinished", self._finished)

    def _finished(self, event: dict[str, Any]) -> None:
        self.moved += int(event["encodedDataLength"])

    def opened(self, address: str, ready: str) -> dict[str, Any]:
        """Open an address in a fresh page; how long until a text is there, and at what cost."""
        self.page.goto("about:blank")
        before, began = self.moved, time.perf_counter()
        try:
            self.page.goto(address, timeout=PATIENCE)
            self.page.get_by_text(ready).first.wait_for(timeout=PATIENCE)
        except Late:
            return {"not there after, s": PATIENCE / 1000, "bytes": self.moved - before}
        took = time.perf_counter() - began
        self.page.wait_for_timeout(1500)
        return {
            "shown after, ms": round(took * 1000),
            "first paint, ms": round(self.page.evaluate(PAINT) or -1),
            "bytes": self.moved - before,
            "nodes": self.page.evaluate("() => document.querySelectorAll('*').length"),
            "heap, MB": heap(self.page),
        }


def free_port() -> int:
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        port: int = own.getsockname()[1]
        return port


def ready(url: str, began: float) -> float:
    """Seconds from a time until a server answers."""
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).read()
            return round(time.perf_counter() - began, 2)
        except OSError:
            assert time.perf_counter() - began < 120, f"{url} does not answer"
            time.sleep(0.05)


def inspect_logs(program: str, sizes: list[int], folder: Path, variables: dict[str, str]) -> Path:
    """Write each episode as a log of inspect's own format."""
    plain, logs = folder / "plain", folder / "logs"
    plain.mkdir()
    for size in sizes:
        file = plain / f"2026-01-01T00-00-00_bench-{size}_{size}.json"
        export = [sys.executable, "-m", "aenv.cli", "trajectory", "export", str(file), "--format", "inspect"]
        subprocess.run([*export, "--episode", f"ep-{size}"], check=True, env=variables, stdout=subprocess.DEVNULL)
    convert = [program, "log", "convert", str(plain), "--to", "eval", "--output-dir", str(logs)]
    subprocess.run(convert, check=True, stdout=subprocess.DEVNULL)
    return logs


def measure_inspect(program: str, sizes: list[int], logs: Path, browser: Browser) -> dict[str, Any]:
    port, began = free_port(), time.perf_counter()
    command = [program, "view", "--log-dir", str(logs), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            found: dict[str, Any] = {"server ready after, s": ready(url, began)}
            found["list"] = Watched(browser).opened(f"{url}/", "bench-")
            for size in sizes:
                name = next(logs.glob(f"*{size}.eval")).name
                address = f"{url}/#/logs/{name}/samples/sample/task-{size}/1"
                found[f"{size:,} events"] = Watched(browser).opened(address, FIRST)
            return found
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


def measure_console(sizes: list[int], variables: dict[str, str], browser: Browser) -> dict[str, Any]:
    began = time.perf_counter()
    command = [sys.executable, "-m", "aenv.cli", "console", "--output", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as process:
        assert process.stdout is not None
        try:
            lines: list[str] = []
            while not lines or lines[-1] != "}\n":
                lines.append(process.stdout.readline())
                assert lines[-1], "the console did not start"
            found: dict[str, Any] = {"server ready after, s": round(time.perf_counter() - began, 2)}
            link = json.loads("".join(lines))["url"]
            place = link.partition("#")[0]
            first = Watched(browser)
            first.page.goto(link)
            first.page.get_by_text("Creates per second").wait_for(timeout=PATIENCE)
            token = first.page.evaluate("sessionStorage.getItem('aenv-token')")
            for name, address, text in [
                ("list", f"{place}#/runs", "Long episodes"),
                *((f"{size:,} events", f"{place}#/episode/ep-{size}", FIRST) for size in sizes),
            ]:
                watched = Watched(browser)
                watched.page.context.add_init_script(f"sessionStorage.setItem('aenv-token', '{token}')")
                found[name] = watched.opened(address, text)
            return found
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)
            subprocess.run([sys.executable, "-m", "aenv.cli", "local", "stop"], env=variables, check=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inspect", default=shutil.which("inspect"))
    parser.add_argument("--events", default="20000,300000")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    sizes = [int(each) for each in given.events.split(",")]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="aenv-p-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        places = {each: folder / each for each in ("data", "run", "cache")}
        for each in places.values():
            each.mkdir(mode=0o700)
        fill(places["data"], sizes, 0)
        own = {"XDG_RUNTIME_DIR": str(places["run"]), "XDG_CACHE_HOME": str(places["cache"]), "HOME": name}
        variables = {**os.environ, **own, "XDG_DATA_HOME": str(places["data"])}
        for each in ("AENV_SYSTEM_URL", "AENV_HUB_URL"):
            variables.pop(each, None)
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            found["console"] = measure_console(sizes, variables, browser)
            if given.inspect:
                logs = inspect_logs(given.inspect, sizes, folder, variables)
                found["inspect view"] = measure_inspect(given.inspect, sizes, logs, browser)
            browser.close()
    found["load"] = os.getloadavg()[0]
    print(json.dumps(found, indent=2))
    if given.json:
        given.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
