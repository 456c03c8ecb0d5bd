"""The desktop of an instance: Xvfb, openbox, and the programs that an episode begins with."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from x11 import Display, DisplayLost, Window, symbol_of

SIZE = (1024, 768)
NEEDED = {"Xvfb": "xvfb", "openbox": "openbox", "mousepad": "mousepad", "xterm": "xterm"}
START_SECONDS = 120.0
# Only these: openbox and GTK read every font that is listed before they show a window, which took ten seconds.
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>/usr/share/fonts/truetype/dejavu</dir><cachedir>{cache}</cachedir></fontconfig>
"""
BUTTONS = {"left": 1, "middle": 2, "wheel": 2, "right": 3}
MOST_TYPED = 20_000


class NotPossible(ValueError):
    """What an agent asked for cannot be done; the message says why."""


def missing() -> list[str]:
    """Return the Debian packages that are not installed."""
    return [package for program, package in NEEDED.items() if shutil.which(program) is None]


class Desktop:
    """Starts when it is first needed; an episode has a home folder and processes of its own."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._display: Display | None = None
        self._number = 0
        self.home = Path()

    @property
    def display(self) -> Display:
        """The display of the episode.

        Raises:
            NotPossible: no episode has begun.
        """
        if self._display is None:
            raise NotPossible("there is no desktop: begin an episode with start")
        return self._display

    def start(self, size: tuple[int, int] = SIZE) -> None:
        """End what runs and begin anew, with an empty home folder."""
        lacking = missing()
        if lacking:
            raise RuntimeError(f"these are missing: apt-get install -y {' '.join(lacking)}")
        with self._lock:
            self.close()
            self.home = Path(tempfile.mkdtemp(prefix="desktop-"))
            (self.home / "fonts.conf").write_text(FONTS.format(cache=self.home / ".fonts"))
            (self.home / "Documents").mkdir()
            reading, writing = os.pipe()
            shape = f"{size[0]}x{size[1]}x24"
            command = ["Xvfb", "-displayfd", str(writing), "-screen", "0", shape, "-nolisten", "tcp", "-noreset"]
            self._run(command, {}, (writing,))
            os.close(writing)
            with open(reading) as answer:
                number = answer.readline().strip()
            if not number:
                self.close()
                raise RuntimeError("Xvfb did not start")
            self._number = int(number)
            self._display = Display(self._number)
            self.run(["openbox", "--sm-disable"])
            self._wait_for_manager()

    def run(self, command: list[str]) -> None:
        """Start a program on the desktop."""
        self._run(command, {"DISPLAY": f":{self._number}"})

    def wait_for(self, title: str, seconds: float = START_SECONDS) -> Window:
        """Return the window whose title has a text, once it is there."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for each in self.display.windows():
                if title.lower() in each.title.lower():
                    return each
            time.sleep(0.02)
        raise RuntimeError(f"no window {title!r} came up in {seconds:g} s")

    def close(self) -> None:
        """End all programs of the desktop and remove its home folder."""
        with self._lock:
            if self._display is not None:
                self._display.close()
                self._display = None
            for each in reversed(self._processes):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(each.pid, signal.SIGKILL)
                each.wait()
            self._processes.clear()
            if self.home != Path():
                shutil.rmtree(self.home, ignore_errors=True)
                self.home = Path()

    # what a person does

    def click(self, x: int, y: int, button: str = "left", count: int = 1, held: str = "") -> None:
        """Click at a point."""
        if button not in BUTTONS:
            raise NotPossible(f"unknown button {button!r}; there are {', '.join(BUTTONS)}")
        self.move(x, y)
        with self._holding(held):
            for _ in range(count):
                self.display.button(BUTTONS[button], True)
                self.display.button(BUTTONS[button], False)
        self.settle()

    def move(self, x: int, y: int) -> None:
        """Move the pointer."""
        width, height = self.display.size
        if not (0 <= x < width and 0 <= y < height):
            raise NotPossible(f"({x}, {y}) lies outside of the screen's {width} x {height} pixels")
        self.display.move(x, y)
        self.display.pointer()

    def drag(self, path: list[tuple[int, int]]) -> None:
        """Press at the first point, move over the others, let go at the last one."""
        if len(path) < 2:
            raise NotPossible("a drag needs two points or more")
        self.move(*path[0])
        self.display.button(1, True)
        for (x, y), (to_x, to_y) in pairwise(path):
            for step in range(1, 9):
                self.move(x + (to_x - x) * step // 8, y + (to_y - y) * step // 8)
                time.sleep(0.01)
        self.display.button(1, False)
        self.settle()

    def scroll(self, x: int, y: int, right: int, down: int) -> None:
        """Turn the wheel by notches."""
        self.move(x, y)
        for button, count in ((4, -down), (5, down), (6, -right), (7, right)):
            for _ in range(min(max(0, count), 100)):
                self.display.button(button, True)
                self.display.button(button, False)
        self.settle()

    def press(self, down: bool) -> None:
        """Press the left button, or let it go."""
        self.display.button(1, down)
        self.settle()

    def keys(self, text: str, repeat: int = 1, seconds: float = 0) -> None:
        """Press a chord such as ctrl+s, and hold it for a time."""
        if not 1 <= repeat <= 100:
            raise NotPossible("repeat must be from 1 to 100")
        for _ in range(repeat):
            with self._holding(text):
                time.sleep(min(max(0.0, seconds), 30.0))
        self.settle()

    def type(self, text: str) -> None:
        """Type a text."""
        if len(text) > MOST_TYPED:
            raise NotPossible(f"at most {MOST_TYPED} characters can be typed at once")
        for sign in text.replace("\r\n", "\n"):
            symbol = symbol_of(sign)
            if not symbol:
                raise NotPossible(f"{sign!r} cannot be typed")
            self.display.key(symbol, True)
            self.display.key(symbol, False)
        self.settle()

    def settle(self) -> None:
        """Give programs the time to draw: until the screen has been the same for two looks, at most half a second."""
        until = time.monotonic() + 0.5
        before = b""
        while time.monotonic() < until:
            self.display.pointer()
            now = self.display.screenshot()
            if now == before:
                return
            before = now
            time.sleep(0.02)

    @contextlib.contextmanager
    def _holding(self, text: str) -> Iterator[None]:
        parts = ["+"] if text == "+" else [each for each in text.split("+") if each]
        symbols = []
        for part in parts:
            symbol = symbol_of(part)
            if not symbol:
                raise NotPossible(f"unknown key {part!r}; use names such as Return, Tab, F5, a, ctrl+s")
            symbols.append(symbol)
        for symbol in symbols:
            self.display.key(symbol, True)
        try:
            yield
        finally:
            for symbol in reversed(symbols):
                self.display.key(symbol, False)

    def _wait_for_manager(self) -> None:
        until = time.monotonic() + START_SECONDS
        while not self.display.property_of(self.display.root, "_NET_SUPPORTING_WM_CHECK"):
            if time.monotonic() > until:
                raise RuntimeError("the window manager did not start")
            time.sleep(0.02)

    def _run(self, command: list[str], more: Mapping[str, str], keep: tuple[int, ...] = ()) -> None:
        variables = {name: value for name, value in os.environ.items() if name in ("PATH", "TZ", "LANG")}
        own = {
            "HOME": str(self.home), "FONTCONFIG_FILE": str(self.home / "fonts.conf"), "GTK_A11Y": "none",
            "NO_AT_BRIDGE": "1", "GSETTINGS_BACKEND": "memory", "XDG_RUNTIME_DIR": str(self.home), "GDK_BACKEND": "x11",
            "DBUS_SESSION_BUS_ADDRESS": "disabled:",
        }  # fmt: skip
        with (self.home / f".log-{Path(command[0]).name}").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.home,
                    pass_fds=keep,
                    env={**variables, **own, **more},
                    start_new_session=True,
                )
            )


__all__ = ["Desktop", "DisplayLost", "NotPossible", "missing"]
