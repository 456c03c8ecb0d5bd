"""The browser of this instance and the episode that it is in: one at a time, each with a context of its own."""

import atexit
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from actions import Actor
from cdp import BrowserEnded, Chromium, CommandFailed
from sites.serving import SiteServer
from tabs import Context, NotPossible
from worlds import HOSTS, SITES, World, begin_miniwob, make_folder, make_miniwob, make_site, miniwob_kinds, score

from aenv import private

SIZE = (1024, 768)
SMALLEST, LARGEST = 200, 2560


class Episode:
    """Makes the browser when it is first needed. What it is asked to do is done one thing after another."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._server: SiteServer | None = None
        self._browser: Chromium | None = None
        self._context: Context | None = None
        self._spare: Context | None = None
        """The next episode's, with an empty tab."""
        self._over: list[Context] = []
        self._preparing: threading.Thread | None = None
        self._actor: Actor | None = None
        self.world: World | None = None
        self.answer: str | None = None
        self.last = {"action": "", "error": ""}
        self.started = 0.0

    @contextmanager
    def acting(self) -> Iterator[Actor]:
        """Give what acts on the pages; an episode without a task begins if there is none."""
        with self._lock:
            if self._actor is None or self._browser is None or not self._browser.alive:
                if self.world is not None and self._browser is not None:
                    self.world = None
                    raise BrowserEnded("the browser has ended, and the episode with it; begin another one with start")
                self.start()
            assert self._actor is not None
            yield self._actor

    def start(self, task: str = "", seed: int = 0, url: str = "", size: tuple[int, int] = SIZE) -> World:
        """Begin an episode: a new context, and the state of the task's site as it is at the beginning."""
        with self._lock:
            world = self._make(task, seed)
            if not task and url:
                world.url = url
            size = world.size if world.secret else size
            context = self._take_context(size)
            self.world, self.answer, self.last = world, None, {"action": "", "error": ""}
            self._actor, self.started = Actor(context), time.monotonic()
            tab = context.tab()
            context.prepare(tab, size, world.scripts, world.bindings)
            if world.url:
                context.navigate(tab, world.url)
            if world.secret:
                begin_miniwob(context, tab, world, seed)
            context.take_notes()
            self._preparing = threading.Thread(target=self._prepare, daemon=True, name="next-episode")
            self._preparing.start()
            return world

    def score(self) -> dict[str, Any]:
        """Return the reward of the episode."""
        with self._lock:
            if self.world is None or self._context is None:
                raise RuntimeError("no episode has begun: call start")
            return score(self.world, list(self._context.tabs.values()), self.answer)

    @property
    def version(self) -> str:
        return self._browser.version if self._browser else ""

    def processes(self) -> int | None:
        """Return the process group of the browser."""
        return self._browser.process.pid if self._browser else None

    def close(self) -> None:
        """End the browser and the sites."""
        with self._lock:
            if self.world is not None:
                self.world.close()
            self._prepared()
            if self._browser is not None:
                self._browser.close()
            if self._server is not None:
                self._server.close()
            self._browser = self._spare = self._server = self._context = self._actor = self.world = None

    def _make(self, task: str, seed: int) -> World:
        if self._server is None:
            self._server = SiteServer()
            atexit.register(self.close)
        if self.world is not None:
            self.world.close()
            self.world = None
        self._server.sites.clear()
        name, _, kind = task.partition("/")
        if not name:
            return World("", "", "")
        if name in SITES:
            return make_site(self._server, name, kind, seed)
        if name == "miniwob":
            return make_miniwob(self._server, kind)
        if name == "folder":
            folder, _, start = kind.partition("#")
            return make_folder(self._server, folder, start)
        raise NotPossible(f"unknown task {task!r}; see list_tasks")

    def _take_context(self, size: tuple[int, int]) -> Context:
        if not all(SMALLEST <= each <= LARGEST for each in size):
            raise NotPossible(f"width and height must be from {SMALLEST} to {LARGEST}")
        self._prepared()
        if self._browser is None or not self._browser.alive:
            if self._browser is not None:
                self._browser.close()
            self._browser = Chromium(*self._flags(), on_event=self._on_event)
            self._browser.call(
                "Target.setAutoAttach", {"autoAttach": True, "waitForDebuggerOnStart": True, "flatten": True}
            )
            self._context = self._spare = None
        old, self._context = self._context, self._spare or self._open_context(self._browser)
        self._spare = None
        if old is not None:
            self._over.append(old)
        return self._context

    def _open_context(self, browser: Chromium) -> Context:
        context = Context(browser, SIZE)
        self._spare = context  # events of its first tab are for it
        context.open()
        return context

    def _prepare(self) -> None:
        """End the last context and make the next one, while the agent thinks."""
        while self._over:
            self._over.pop().close()
        browser = self._browser
        if browser is not None:
            try:
                self._open_context(browser)
            except (BrowserEnded, CommandFailed):
                self._spare = None

    def _prepared(self) -> None:
        if self._preparing is not None:
            self._preparing.join()
            self._preparing = None

    def _on_event(self, method: str, params: dict[str, Any], session: str) -> None:
        for context in (self._context, self._spare):
            if context is not None and not (context is self._spare and method.startswith("Browser.")):
                context.on_event(method, params, session)

    def _flags(self) -> list[str]:
        assert self._server is not None
        sites = ",".join(f"MAP {host} 127.0.0.1:{self._server.port}" for host in HOSTS)
        proxy = os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy") or os.environ.get("HTTP_PROXY")
        if not proxy:
            # Nothing but our sites can be reached: no other name, and no address, the instance's own loopback included.
            return [f"--host-resolver-rules={sites},MAP * ~NOTFOUND", "--no-proxy-server"]
        split = urlsplit(proxy)
        own = ";".join(HOSTS)
        return [
            f"--host-resolver-rules={sites}",
            f"--proxy-server={split.hostname}:{split.port}",
            f"--proxy-bypass-list=<-loopback>;{own}",
        ]


def task_names() -> Iterator[str]:
    """Return the names of all tasks."""
    for site, kinds in private("goals.py").module().KINDS.items():
        for kind in kinds:
            yield f"{site}/{kind}"
    try:
        yield from (f"miniwob/{kind}" for kind in miniwob_kinds())
    except NotPossible:
        return


def project_file(name: str) -> Path:
    """Return a file of the project that is given to the agent."""
    root = Path.cwd().resolve()
    place = (root / name).resolve()
    if not place.is_file() or not place.is_relative_to(root):
        raise NotPossible(f"{name!r} is not a file of the project")
    return place
