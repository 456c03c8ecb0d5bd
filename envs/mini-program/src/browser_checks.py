"""What an app does in a real browser: a Chromium without a window, spoken to over a pipe.

The app's files are answered by this program, at an address that exists nowhere else; nothing else is. Its elements are
looked up and read in an isolated world, where scripts of the app are not, and it is clicked and typed at as by a
user. So an app can do nothing about a check but pass or fail it.
"""

import base64
import contextlib
import fcntl
import json
import mimetypes
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PROGRAMS = (
    "/usr/lib/chromium/chromium-headless-shell",
    "/usr/lib/chromium/chromium",
    "/usr/lib/chromium-browser/chromium-browser",
    "/opt/google/chrome/chrome",
    "/usr/bin/chromium",
)
"""Where browsers are installed. The search path is not used: an agent might have put a program there."""
OPTIONS = (
    "--headless", "--remote-debugging-pipe", "--no-sandbox", "--no-zygote", "--disable-gpu", "--disable-dev-shm-usage",
    "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-breakpad",
    "--mute-audio", "--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=1280,800",
)  # fmt: skip
"""The instance is the sandbox: Chromium's own needs rights that instances do not have."""
ORIGIN = "http://app.test/"
START_SECONDS = 60.0
ANSWER_SECONDS = 10.0
STEP_SECONDS = 5.0
"""How long a step waits for what it expects."""
CHECK_SECONDS = 60.0
MAX_STEPS = 100
MAX_MESSAGE = 64 << 20
MAX_ENTRIES = 200
LOOK = """(() => {
  const found = [...document.querySelectorAll(SELECTOR)];
  const shown = found.filter((each) => each.checkVisibility());
  const box = shown[0]?.getBoundingClientRect();
  const first = found.slice(0, 100);
  return {
    shown: shown.length,
    texts: first.map((each) => each.innerText ?? each.textContent),
    values: first.map((each) => each.value ?? null),
    x: box && box.x + box.width / 2,
    y: box && box.y + box.height / 2,
  };
})()"""


class NoBrowser(RuntimeError):
    """There is no browser, or it does not start. That is nothing that an app has done."""


class StepFailed(Exception):
    """The app did not do what a step expects."""


def find_browser() -> str | None:
    """Return the program of a browser on this machine; None if there is none."""
    given = os.environ.get("MINI_PROGRAM_BROWSER")
    return next((path for path in ([given] if given else PROGRAMS) if os.access(path, os.X_OK)), None)


class Browser:
    """A running browser."""

    def __init__(self, program: str) -> None:
        self._folder = tempfile.mkdtemp(prefix="browser-")
        self._number = 0
        self._held = b""
        self.pages: dict[str, Page] = {}
        theirs_in, self._write = _pipe()
        self._read, theirs_out = _pipe()
        argv = [program, *OPTIONS, f"--user-data-dir={self._folder}", "about:blank"]
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, theirs_in, 3),
            (os.POSIX_SPAWN_DUP2, theirs_out, 4),
        ]
        environment = {"PATH": os.defpath, "HOME": self._folder, "TMPDIR": self._folder, "LANG": "C.UTF-8"}
        try:
            self._process = os.posix_spawn(program, argv, environment, file_actions=actions, setpgroup=0)
        except OSError as error:
            self._process = 0
            self.close()
            raise NoBrowser(f"{program} does not start: {error}") from None
        finally:
            os.close(theirs_in)
            os.close(theirs_out)

    def send(self, method: str, params: Mapping[str, Any] | None = None, session: str = "",
             seconds: float = ANSWER_SECONDS) -> dict[str, Any]:  # fmt: skip
        """Send a command; return its result.

        Raises:
            StepFailed: the browser refuses it, or does not answer in time.
        """
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": dict(params or {})}
        if session:
            message["sessionId"] = session
        self._put(message)
        deadline = time.monotonic() + seconds
        while True:
            answer = self._next(deadline)
            if answer is None:
                raise StepFailed(f"the app does not answer for {seconds:g} s")
            if answer.get("id") == number:
                if "error" in answer:
                    raise StepFailed(str(answer["error"].get("message")))
                result: dict[str, Any] = answer.get("result", {})
                return result
            self._happened(answer)

    def tell(self, method: str, params: Mapping[str, Any], session: str) -> None:
        """Send a command whose result is of no interest."""
        self._number += 1
        self._put({"id": self._number, "method": method, "params": dict(params), "sessionId": session})

    def wait(self, seconds: float) -> None:
        """Handle what happens for a moment."""
        deadline = time.monotonic() + seconds
        while (event := self._next(deadline)) is not None:
            self._happened(event)

    def close(self) -> None:
        """End the browser."""
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._process, 0)
        os.close(self._read)
        os.close(self._write)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _put(self, message: Mapping[str, Any]) -> None:
        data = memoryview(json.dumps(message).encode() + b"\0")
        try:
            while data:
                data = data[os.write(self._write, data) :]
        except BrokenPipeError:
            raise StepFailed("the browser has ended") from None

    def _next(self, deadline: float) -> dict[str, Any] | None:
        """Return the next message; None when there was none in time."""
        while b"\0" not in self._held:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                return None
            data = os.read(self._read, 1 << 20)
            if not data:
                raise StepFailed("the browser has ended")
            self._held += data
            if len(self._held) > MAX_MESSAGE:
                raise StepFailed("the app says more than is read")
        text, _, self._held = self._held.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _happened(self, event: Mapping[str, Any]) -> None:
        page = self.pages.get(event.get("sessionId", ""))
        if page is not None:
            page.happened(event.get("method", ""), event.get("params", {}))


class Page:
    """An app in a tab of its own, with a storage of its own."""

    def __init__(self, browser: Browser, files: Mapping[str, str], *, width: int = 1280) -> None:
        self._browser, self._files, self._loaded = browser, files, False
        self.entries: list[dict[str, str]] = []
        """What the app wrote to the console."""
        context = browser.send("Target.createBrowserContext")["browserContextId"]
        target = browser.send("Target.createTarget", {"url": "about:blank", "browserContextId": context})["targetId"]
        attached = browser.send("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session: str = attached["sessionId"]
        browser.pages[self._session] = self
        for domain in ("Page", "Runtime", "Log"):
            self._send(f"{domain}.enable")
        self._send("Fetch.enable", {"patterns": [{"urlPattern": "*"}]})
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
        self._send("Emulation.setDeviceMetricsOverride", size)
        self._frame: str = self._send("Page.getFrameTree")["frameTree"]["frame"]["id"]

    def open(self) -> None:
        """Open the app's index.html, and wait until it has loaded."""
        self._loaded = False
        self._send("Page.navigate", {"url": f"{ORIGIN}index.html"})
        self._until(lambda: self._loaded, "the page does not load")

    def do(self, step: Mapping[str, Any]) -> None:
        """Do one step.

        Raises:
            StepFailed: it cannot be done, or what it expects does not come.
            ValueError: the step is malformed.
        """
        kind = next((name for name in STEPS if name in step), None)
        if kind is None:
            raise ValueError(f"unknown step {dict(step)!r:.200}; expected one of {', '.join(STEPS)}")
        if kind == "press":
            key = str(step["press"])
            typed = {"key": key, "code": key, **({"text": "\r", "windowsVirtualKeyCode": 13} if key == "Enter" else {})}
            for name in ("keyDown", "keyUp"):
                self._send("Input.dispatchKeyEvent", {"type": name, **typed})
        elif kind == "reload":
            self.open()
        elif kind == "no_errors":
            self._browser.wait(0.2)
            wrong = [each["text"] for each in self.entries if each["level"] == "error"]
            if wrong:
                raise StepFailed(f"the console says: {wrong[0]}")
        elif kind == "expect":
            self._until(lambda: self._fits(step), f"expected {json.dumps(dict(step))}")
        else:
            self._click(str(step[kind]))
            if kind == "fill":
                self._evaluate("document.activeElement?.select?.()")
                self._send("Input.insertText", {"text": str(step.get("text", ""))})

    def happened(self, method: str, params: Mapping[str, Any]) -> None:
        """Take an event of the browser."""
        if method == "Fetch.requestPaused":
            self._answer(params)
        elif method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Page.javascriptDialogOpening":
            self._browser.tell("Page.handleJavaScriptDialog", {"accept": False}, self._session)
        elif method == "Runtime.exceptionThrown":
            thrown = params.get("exceptionDetails", {})
            text = thrown.get("exception", {}).get("description") or thrown.get("text", "")
            self._say("error", str(text).split("\n", 1)[0] + f" (line {thrown.get('lineNumber', 0) + 1})")
        elif method == "Runtime.consoleAPICalled":
            said = [each.get("value", each.get("description", "")) for each in params.get("args", [])]
            level = {"warning": "warn"}.get(params.get("type", ""), str(params.get("type", "log")))
            self._say(level, " ".join(map(str, said)))
        elif method == "Log.entryAdded" and params["entry"].get("source") == "network":
            entry = params["entry"]
            if not str(entry.get("url")).endswith("/favicon.ico"):  # browsers ask for it themselves
                self._say("error", f"{entry.get('text')}: {entry.get('url')}")

    def _answer(self, paused: Mapping[str, Any]) -> None:
        url, number = str(paused["request"]["url"]), {"requestId": paused["requestId"]}
        if not url.startswith(ORIGIN):
            refused = {**number, "errorReason": "AddressUnreachable"}
            self._browser.tell("Fetch.failRequest", refused, self._session)
            return
        name = url.removeprefix(ORIGIN).split("?")[0].split("#")[0] or "index.html"
        found = self._files.get(name)
        kind = mimetypes.guess_type(name)[0] or "text/plain"
        answer = {
            **number, "responseCode": 404 if found is None else 200,
            "responseHeaders": [{"name": "content-type", "value": f"{kind}; charset=utf-8"}],
            "body": base64.b64encode((found or "").encode(errors="replace")).decode(),
        }  # fmt: skip
        self._browser.tell("Fetch.fulfillRequest", answer, self._session)

    def _say(self, level: str, text: str) -> None:
        if len(self.entries) < MAX_ENTRIES:
            self.entries.append({"level": level, "text": text[:2000]})

    def _send(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self._browser.send(method, params, self._session)

    def _until(self, condition: Any, why: str) -> None:
        deadline = time.monotonic() + STEP_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise StepFailed(why)
            self._browser.wait(0.05)

    def _evaluate(self, expression: str) -> Any:
        """Return the value of an expression, evaluated where no script of the app is."""
        world = self._send("Page.createIsolatedWorld", {"frameId": self._frame, "worldName": "checks"})
        given = {"expression": expression, "contextId": world["executionContextId"], "returnByValue": True}
        found = self._send("Runtime.evaluate", given)
        if "exceptionDetails" in found:
            raise ValueError(str(found["exceptionDetails"].get("exception", {}).get("description"))[:300])
        return found["result"].get("value")

    def _look(self, selector: str) -> dict[str, Any]:
        found: dict[str, Any] = self._evaluate(LOOK.replace("SELECTOR", json.dumps(selector)))
        return found

    def _fits(self, step: Mapping[str, Any]) -> bool:
        found = self._look(str(step["expect"]))
        counted = found["shown"] == step["count"] if "count" in step else found["shown"] > 0
        texts = [each or "" for each in found["texts"]]
        has_text = "text" not in step or any(str(step["text"]) in each for each in texts)
        return counted and has_text and ("value" not in step or str(step["value"]) in found["values"])

    def _click(self, selector: str) -> None:
        self._until(lambda: self._look(selector)["shown"], f"there is no visible {selector}")
        self._evaluate(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        found = self._look(selector)
        place = {"x": found["x"], "y": found["y"], "button": "left", "clickCount": 1}
        for name in ("mouseMoved", "mousePressed", "mouseReleased"):
            self._send("Input.dispatchMouseEvent", {"type": name, **place})


STEPS = ("fill", "click", "press", "expect", "no_errors", "reload")


@contextlib.contextmanager
def browsing() -> Iterator[Browser]:
    """Run a browser for the length of the block.

    Raises:
        NoBrowser: there is none, or it does not start.
    """
    program = find_browser()
    if program is None:
        raise NoBrowser("there is no browser here: install chromium, or set MINI_PROGRAM_BROWSER to its program")
    browser = Browser(program)
    try:
        try:
            browser.send("Browser.getVersion", seconds=START_SECONDS)
        except StepFailed as error:
            raise NoBrowser(f"{Path(program).name} does not start: {error}") from None
        yield browser
    finally:
        browser.close()


def behaves(browser: Browser, check: Mapping[str, Any], files: Mapping[str, str]) -> str | None:
    """Do the steps of a check; return why they failed, or None.

    Raises:
        ValueError: a step is malformed.
    """
    steps = check.get("steps")
    if not isinstance(steps, list) or not 0 < len(steps) <= MAX_STEPS:
        raise ValueError(f"a browser check has a list of 1 to {MAX_STEPS} steps")
    try:
        page = Page(browser, files, width=int(check.get("width", 1280)))
        page.open()
        deadline = time.monotonic() + CHECK_SECONDS
        for number, step in enumerate(steps, 1):
            if time.monotonic() > deadline:
                return f"step {number}: the app took longer than {CHECK_SECONDS:g} s"
            try:
                page.do(step)
            except StepFailed as error:
                return f"step {number}: {error}"
    except StepFailed as error:
        return str(error)
    return None


def console_of(files: Mapping[str, str]) -> list[dict[str, str]]:
    """Open an app and return what it wrote to the console."""
    with browsing() as browser:
        page = Page(browser, files)
        try:
            page.open()
            browser.wait(0.5)
        except StepFailed as error:
            return [*page.entries, {"level": "error", "text": str(error)}]
        return page.entries


def _pipe() -> tuple[int, int]:
    """Return a pipe whose descriptors are not those that the browser is to get."""
    return tuple(_moved(each) for each in os.pipe())  # type: ignore[return-value]


def _moved(descriptor: int) -> int:
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved
