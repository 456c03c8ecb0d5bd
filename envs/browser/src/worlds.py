"""What an episode is played on: a site of ours, a MiniWoB++ page, a folder of the project, or an address of the web."""

import importlib.util
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sites import shop, tickets, wiki
from sites.serving import Site, SiteServer, folder_site
from sites.state import State, differences
from tabs import Context, NotPossible, Tab

from aenv import private

SITES: dict[str, tuple[str, Callable[[int], State], Callable[[State], Any]]] = {
    "shop": (shop.HOST, shop.make, shop.Shop),
    "tickets": (tickets.HOST, tickets.make, tickets.Tickets),
    "wiki": (wiki.HOST, wiki.make, wiki.Wiki),
}
MINIWOB_HOST = "miniwob.test"
MINIWOB_SIZE = (332, 214)
FOLDER_HOST = "pages.test"
HOSTS = (*(host for host, _, _ in SITES.values()), MINIWOB_HOST, FOLDER_HOST)
MISSING_MINIWOB = "MiniWoB++ is not installed: pip install miniwob (add miniwob to requirements.txt)"
SETUP_SECONDS = 15.0

# Runs in every document before the page's own scripts. What the page reports when its episode ends goes out through a
# function that only this closure knows; the page's global variables are never read.
_REPORT = """(() => {
  const tell = self[%(name)r], secret = %(secret)r;
  delete self[%(name)r];
  if (self !== top || typeof tell !== "function") return;
  addEventListener("DOMContentLoaded", () => {
    const known = self.core && self.core.endEpisode;
    if (typeof known !== "function") return;
    const ended = function (reward, ...more) {
      if (self.core.EP_TIMER !== null) tell(secret + JSON.stringify(Number(reward)));
      return known.call(self.core, reward, ...more);
    };
    Object.defineProperty(self.core, "endEpisode", {value: ended, writable: false, configurable: false});
  }, {once: true, capture: true});
})()"""
_START = """(seed, most) => {
  Math.seedrandom(seed);
  core.EPISODE_MAX_TIME = most;
  core.startEpisodeReal();
  core.hideDisplay();
}"""
_READY = "typeof WOB_TASK_READY === 'undefined' || WOB_TASK_READY"
EPISODE_MS = 1_000_000_000


@dataclass
class World:
    """The present episode's."""

    name: str
    instruction: str
    url: str
    size: tuple[int, int] = (1024, 768)
    state: State | None = None
    wanted: State | None = None
    answer: str = ""
    secret: str = ""
    """Marks what a MiniWoB++ page reports; empty for other worlds."""
    scripts: list[str] = field(default_factory=list)
    bindings: list[str] = field(default_factory=list)

    def close(self) -> None:
        """Forget the state."""
        for each in (self.state, self.wanted):
            if each is not None:
                each.close()


def miniwob_folder() -> Path:
    """Return the folder of the MiniWoB++ pages.

    Raises:
        NotPossible: the package is not installed.
    """
    found = importlib.util.find_spec("miniwob")
    if found is None or not found.origin:
        raise NotPossible(MISSING_MINIWOB)
    return Path(found.origin).parent / "html"


def miniwob_kinds() -> list[str]:
    """Return the names of the MiniWoB++ tasks."""
    return sorted(each.stem for each in (miniwob_folder() / "miniwob").glob("*.html"))


def make_site(server: SiteServer, name: str, kind: str, seed: int) -> World:
    """Return an episode on one of our sites, and serve it."""
    host, make, pages = SITES[name]
    goals = private("goals.py").module()
    if kind and kind not in goals.KINDS[name]:
        raise NotPossible(f"{name} has no task {kind!r}; there are: {', '.join(goals.KINDS[name])}")
    state, wanted = make(seed), make(seed)
    world = World(f"{name}/{kind}" if kind else name, "", f"http://{host}/", state=state)
    if kind:
        goal = goals.goal(name, kind, seed, pages(wanted))
        goal.do(pages(wanted))
        world.instruction, world.answer, world.wanted = goal.instruction, goal.answer, wanted
    else:
        wanted.close()
    server.sites[host] = pages(state)
    return world


def make_miniwob(server: SiteServer, kind: str) -> World:
    """Return an episode of MiniWoB++; it begins once its page is there."""
    if kind not in miniwob_kinds():
        raise NotPossible(f"MiniWoB++ has no task {kind!r}; see list_tasks")
    server.sites[MINIWOB_HOST] = folder_site(miniwob_folder())
    name, secret = f"_{secrets.token_hex(12)}", secrets.token_hex(16)
    script = _REPORT % {"name": name, "secret": secret}
    url = f"http://{MINIWOB_HOST}/miniwob/{kind}.html"
    return World(f"miniwob/{kind}", "", url, MINIWOB_SIZE, secret=secret, scripts=[script], bindings=[name])


def make_folder(server: SiteServer, folder: str, start: str) -> World:
    """Return an episode on the pages of a folder of the project."""
    root = Path.cwd().resolve()
    place = (root / folder).resolve()
    if not place.is_dir() or not place.is_relative_to(root) or place == root:
        raise NotPossible(f"{folder!r} is not a folder of the project")
    server.sites[FOLDER_HOST]: Site = folder_site(place)
    return World(f"folder/{folder}", "", f"http://{FOLDER_HOST}/{start.lstrip('/')}")


def begin_miniwob(context: Context, tab: Tab, world: World, seed: int) -> None:
    """Begin the episode on the page that was opened, and read what it asks for."""
    import time

    expression = f"({_START})({str(seed)!r}, {EPISODE_MS})"
    answer = context.call(tab, "Runtime.evaluate", {"expression": expression})
    context.settle(tab)
    if "exceptionDetails" in answer:
        raise RuntimeError(f"{world.name} did not start: {answer['exceptionDetails']['text']}")
    until = time.monotonic() + SETUP_SECONDS
    while not context.call(tab, "Runtime.evaluate", {"expression": _READY})["result"].get("value"):
        if time.monotonic() > until:
            raise RuntimeError(f"{world.name} did not become ready")
        time.sleep(0.02)
    said = context.call(tab, "Runtime.evaluate", {"expression": "core.getUtterance()", "returnByValue": True})
    said_value = said["result"].get("value")
    world.instruction = said_value if isinstance(said_value, str) else str((said_value or {}).get("utterance", ""))


def score(world: World, tabs: list[Tab], answer: str | None) -> dict[str, Any]:
    """Return the reward, from the state of the site or the page's own report, never from what a page shows.

    Raises:
        RuntimeError: the episode has no task.
    """
    if world.secret:
        reports = [payload for tab in tabs for _, payload in tab.bound if payload.startswith(world.secret)]
        reward = float(reports[0].removeprefix(world.secret)) if reports else 0.0
        return {"score": max(0.0, min(1.0, reward)), "raw": reward, "done": bool(reports), "differences": []}
    if world.state is None or world.wanted is None:
        raise RuntimeError("this episode has no task: begin one with start(task=...)")
    found = differences(world.wanted, world.state)
    if world.answer:
        if answer is None:
            found.append("no answer was given")
        elif " ".join(answer.split()).strip(". ").lower() != world.answer.lower():
            found.append("the answer is wrong")
    return {"score": 0.0 if found else 1.0, "done": not found, "differences": found[:20]}
