"""Chromium, driven over a pair of pipes with the Chrome DevTools Protocol.

Pipes and not a port: nothing else in the instance can connect to the browser, and there is no port to guess. The
browser starts when it is first needed and never on import, since an environment that is forked must be one thread.
"""

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

PROGRAMS = (
    "/usr/lib/chromium/chromium-headless-shell",
    "/usr/lib/chromium-browser/headless_shell",
    "chromium-headless-shell",
    "chrome-headless-shell",
    "/usr/lib/chromium/chromium",
    "/usr/lib64/chromium-browser/chromium-browser",
    "/opt/google/chrome/chrome",
    "chromium",
    "chromium-browser",
    "google-chrome",
)
"""Where a browser may be, best first. Debian's wrapper /usr/bin/chromium reads /etc, which an instance has not."""
MISSING = "there is no browser: apt-get install -y chromium-headless-shell (or chromium), or set AENV_BROWSER"
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>/usr/share/fonts</dir><dir>/usr/local/share/fonts</dir><cachedir>{cache}</cachedir></fontconfig>
"""
QUIET = (
    "AutofillServerCommunication,BackForwardCache,CertificateTransparencyComponentUpdater,DialMediaRouteProvider,"
    "GlobalMediaControls,InterestFeedContentSuggestions,MediaRouter,OptimizationHints,PaintHolding,Translate,"
    "IsolateOrigins,site-per-process"
)
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # it needs namespaces, which an instance cannot make; the instance is the sandbox
    "--no-zygote",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-site-isolation-trials",
    "--allow-pre-commit-input",  # else what comes before the first frame is dropped
    "--disable-background-networking",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-breakpad",
    "--disable-client-side-phishing-detection",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-renderer-backgrounding",
    "--disable-smooth-scrolling",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--force-device-scale-factor=1",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--lang=en-US",
    "--log-level=3",
    "--metrics-recording-only",
    "--mute-audio",
    "--no-default-browser-check",
    "--no-first-run",
    "--no-pings",
    "--password-store=basic",
    f"--disable-features={QUIET}",
)
CALL_SECONDS = 30.0
START_SECONDS = 180.0  # 30 were too few when 16 browsers started at once on two busy cores
ENDED = object()


class CommandFailed(Exception):
    """The browser refused a command, or did not answer it in time."""


class BrowserEnded(Exception):
    """The browser is gone. The next episode starts another one."""


def find_program() -> str:
    """Return the browser's program: AENV_BROWSER, or the first of the usual ones.

    Raises:
        FileNotFoundError: there is none.
    """
    given = os.environ.get("AENV_BROWSER")
    for name in (given,) if given else PROGRAMS:
        found = shutil.which(name)
        if found:
            return found
    raise FileNotFoundError(f"AENV_BROWSER: there is no {given}" if given else MISSING)


class Chromium:
    """One browser process, and its commands and events."""

    def __init__(self, *flags: str, on_event: Callable[[str, dict[str, Any], str], None]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="browser-"))
        self._on_event = on_event
        self._lock = threading.Lock()
        self._next = 0
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._ended = False
        fonts = self.folder / "fonts.conf"
        fonts.write_text(FONTS.format(cache=self.folder / "fonts"))
        command = [find_program(), *FLAGS, f"--user-data-dir={self.folder / 'profile'}", *flags, "about:blank"]
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        with (self.folder / "log").open("wb") as log:
            # The protocol is spoken on descriptors 3 and 4, which only a shell can set without code after fork.
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", 'exec "$@" 3<&0 4>&1 0</dev/null 1>/dev/null', "browser", *command],
                stdin=theirs_in, stdout=theirs_out, stderr=log, start_new_session=True, cwd=self.folder,
                env=_variables(self.folder),
            )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        threading.Thread(target=self._read, daemon=True, name="browser-answers").start()
        threading.Thread(target=self._tell, daemon=True, name="browser-events").start()
        try:
            self.version = str(self.call("Browser.getVersion", seconds=START_SECONDS)["product"])
        except (BrowserEnded, CommandFailed):
            text = (self.folder / "log").read_text(errors="replace")[-2000:]
            self.close()
            raise BrowserEnded(f"the browser did not start: {text or 'it said nothing'}") from None

    def send(self, method: str, params: Mapping[str, Any] | None = None, session: str = "") -> Future[dict[str, Any]]:
        """Send a command and return its answer to come."""
        answer: Future[dict[str, Any]] = Future()
        message: dict[str, Any] = {"method": method, "params": params or {}}
        if session:
            message["sessionId"] = session
        with self._lock:
            if self._ended:
                raise BrowserEnded("the browser has ended")
            self._next += 1
            self._waiting[self._next] = answer
            data = json.dumps({"id": self._next, **message}).encode() + b"\0"
            try:
                while data:
                    data = data[os.write(self._out, data) :]
            except OSError as error:
                raise BrowserEnded("the browser has ended") from error
        return answer

    def call(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        session: str = "",
        seconds: float = CALL_SECONDS,
    ) -> dict[str, Any]:
        """Send a command and return its result.

        Raises:
            CommandFailed: the browser refused it or did not answer in time.
            BrowserEnded: the browser is gone.
        """
        return self.result(self.send(method, params, session), method, seconds)

    def result(self, answer: Future[dict[str, Any]], method: str, seconds: float = CALL_SECONDS) -> dict[str, Any]:
        """Return the result of a command that was sent."""
        try:
            return answer.result(seconds)
        except TimeoutError:
            raise CommandFailed(f"{method}: the page did not answer for {seconds:g} s") from None

    def drain(self) -> None:
        """Return when the events that came before the last answer have been handled."""
        handled = threading.Event()
        self._events.put(handled)
        while not handled.wait(0.2) and not self._ended:
            pass

    @property
    def alive(self) -> bool:
        return not self._ended and self.process.poll() is None

    def close(self) -> None:
        """End the browser with all its processes and remove its files. Doing so twice is harmless."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        with self._lock:
            was, self._ended = self._out, True
            self._out = -1
        if was >= 0:
            os.close(was)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _read(self) -> None:
        kept = bytearray()
        try:
            while data := os.read(self._in, 1 << 20):
                start = len(kept)
                kept += data
                while (end := kept.find(b"\0", start)) >= 0:
                    self._take(json.loads(kept[:end]))
                    del kept[: end + 1]
                    start = 0
        except (OSError, ValueError):
            pass
        with self._lock:
            self._ended = True
            waiting, self._waiting = self._waiting, {}
        os.close(self._in)
        for answer in waiting.values():
            answer.set_exception(BrowserEnded("the browser has ended"))
        self._events.put(ENDED)

    def _take(self, message: dict[str, Any]) -> None:
        if "id" not in message:
            self._events.put(message)
            return
        with self._lock:
            answer = self._waiting.pop(message["id"], None)
        if answer is None:
            return
        if "error" in message:
            answer.set_exception(CommandFailed(str(message["error"].get("message", "refused"))))
        else:
            answer.set_result(message.get("result", {}))

    def _tell(self) -> None:
        while (message := self._events.get()) is not ENDED:
            if isinstance(message, threading.Event):
                message.set()
                continue
            with contextlib.suppress(CommandFailed, BrowserEnded):
                self._on_event(message["method"], message.get("params", {}), message.get("sessionId", ""))


def _variables(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "TZ", "LD_LIBRARY_PATH")}
    made = {"HOME": str(folder), "TMPDIR": str(folder), "FONTCONFIG_FILE": str(folder / "fonts.conf")}
    return {"LANG": "C.UTF-8", "DBUS_SESSION_BUS_ADDRESS": "disabled:", **kept, **made}
