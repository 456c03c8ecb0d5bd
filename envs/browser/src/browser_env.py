"""A web browser for an agent.

The tools have the names and the arguments of Anthropic's browser toolset. `computer`, `openai_computer` and
`browsergym` take the same actions in the shapes of others; they are not listed, since an agent needs one set.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import shapes
from actions import Actor
from cdp import BrowserEnded, CommandFailed
from episode import Episode, project_file, task_names
from snapshot import elements, line, read
from snapshot import find as find_elements
from tabs import NotPossible, Tab

from aenv import Image, ToolResult, register_function, register_reward, register_tasks, register_tool

MOST_TEXT = 50_000
MOST_READ = 200_000
episode = Episode()
TabId = str | None


@dataclass
class Target:
    """Where to act: {"type": "ref", "ref": "ref_7"} or {"type": "coordinate", "x": 10, "y": 20}."""

    type: Literal["ref", "coordinate"]
    ref: str = ""
    x: float = 0
    y: float = 0


@dataclass
class Point:
    """A point of the page: {"type": "coordinate", "x": 10, "y": 20}."""

    x: float
    y: float
    type: Literal["coordinate"] = "coordinate"


@dataclass
class Element:
    """An element of the page: {"type": "ref", "ref": "ref_7"}."""

    ref: str
    type: Literal["ref"] = "ref"


def tell(actor: Actor, tab: Tab, done: str) -> str:
    """Return what was done and what else happened meanwhile."""
    notes = actor.context.take_notes()
    return "\n".join([done, f"{tab.name} is at {tab.url}", *(f"Note: {note}" for note in notes)])


def acted(error: Exception) -> ToolResult:
    """Return an error that the agent can do something about."""
    return ToolResult([{"type": "text", "text": str(error)}], is_error=True)


def act(tab_id: TabId, work: Any) -> Any:
    """Do something with a tab. What cannot be done is a result, and no failure of the environment."""
    try:
        with episode.acting() as actor:
            return work(actor, actor.context.tab(tab_id))
    except (NotPossible, CommandFailed, BrowserEnded) as error:
        return acted(error)


def do(tab_id: TabId, work: Any, done: str) -> Any:
    """Do something with a tab, and tell what happened."""

    def told(actor: Actor, tab: Tab) -> str:
        warning = work(actor, tab)
        return tell(actor, tab, f"{done}. {warning}." if warning else f"{done}.")

    return act(tab_id, told)


# pages and tabs


@register_tool
def navigate(url: str, tab_id: TabId = None) -> Any:
    """Open an address, or go "back", "forward" or "reload".

    Args:
        url: An http or https address, or one of these words.
        tab_id: The tab; the active one if left out.
    """

    def go(actor: Actor, tab: Tab) -> None:
        context = actor.context
        if url in ("back", "forward"):
            context.history(tab, -1 if url == "back" else 1)
        elif url == "reload":
            context.reload(tab)
        else:
            context.navigate(tab, url if ":" in url.split("/")[0] else f"http://{url}")

    return do(tab_id, go, "Opened" if "." in url else "Done")


@register_tool
def list_tabs() -> Any:
    """List the tabs with their titles and addresses."""
    return act(None, lambda actor, tab: {"active": actor.context.active, "tabs": actor.context.titles()})


@register_tool
def new_tab() -> Any:
    """Open an empty tab and make it the active one."""
    return act(None, lambda actor, tab: {"tab_id": actor.context.open().name})


@register_tool
def switch_tab(tab_id: str) -> Any:
    """Make a tab the active one.

    Args:
        tab_id: Such as tab_2.
    """

    def switch(actor: Actor, tab: Tab) -> str:
        actor.context.active = tab.name
        actor.context.call(tab, "Page.bringToFront")
        return tell(actor, tab, "Switched.")

    return act(tab_id, switch)


@register_tool
def close_tab(tab_id: str) -> Any:
    """Close a tab.

    Args:
        tab_id: Such as tab_2.
    """

    def close(actor: Actor, tab: Tab) -> str:
        actor.context.close_tab(tab_id)
        return f"Closed. The active tab is {actor.context.active}."

    return act(tab_id, close)


@register_tool
def read_page(
    filter: Literal["", "interactive", "all"] = "", depth: int = 15, ref: str = "", tab_id: TabId = None
) -> Any:
    """Read the page as an accessibility tree, with references such as [ref_7] that actions take.

    Args:
        filter: "interactive": only what can be acted on.
        depth: How deep the tree goes at most.
        ref: Only the part of the page below this element.
        tab_id: The tab; the active one if left out.
    """
    only = "interactive" if filter == "interactive" else ""
    return act(tab_id, lambda actor, tab: read(actor.context, tab, only, depth, ref))


@register_tool
def get_page_text(tab_id: TabId = None) -> Any:
    """Read the text that the page shows.

    Args:
        tab_id: The tab; the active one if left out.
    """
    return act(tab_id, lambda actor, tab: actor.text(tab)[:MOST_TEXT])


@register_tool
def find(query: str, tab_id: TabId = None) -> Any:
    """Find elements by words of their role and name, at most 20, with references.

    Args:
        query: Such as "search box" or "add to cart button".
        tab_id: The tab; the active one if left out.
    """
    return act(tab_id, lambda actor, tab: find_elements(actor.context, tab, query))


@register_tool
def read_console(tab_id: TabId = None) -> Any:
    """Read what the page's console said since this was last read.

    Args:
        tab_id: The tab; the active one if left out.
    """
    return act(tab_id, lambda actor, tab: _drain(tab.console))


@register_tool
def read_network(tab_id: TabId = None) -> Any:
    """Read the requests of the page since this was last read: method, address, status, type, time.

    Args:
        tab_id: The tab; the active one if left out.
    """
    return act(tab_id, lambda actor, tab: _drain(tab.network))


def _drain(entries: Any) -> str:
    lines = []
    while entries:
        lines.append(entries.popleft())
    return "\n".join(lines)[:MOST_TEXT]


@register_tool
def screenshot(tab_id: TabId = None) -> Any:
    """See the page as a picture.

    Args:
        tab_id: The tab; the active one if left out.
    """
    return act(tab_id, lambda actor, tab: Image(actor.screenshot(tab)))


@register_tool
def zoom(region: list[int], tab_id: TabId = None) -> Any:
    """See a part of the page enlarged.

    Args:
        region: [left, top, right, bottom] in pixels of the page.
        tab_id: The tab; the active one if left out.
    """

    def look(actor: Actor, tab: Tab) -> Image:
        if len(region) != 4:
            raise NotPossible("region has four numbers: left, top, right, bottom")
        return Image(actor.screenshot(tab, region))

    return act(tab_id, look)


@register_tool
def wait(duration: Annotated[float, "seconds"] = 1.0, text: str = "", tab_id: TabId = None) -> Any:
    """Wait for a time, or until the page shows a text.

    Args:
        duration: Seconds, at most 30.
        text: What to wait for; without it, the whole time passes.
        tab_id: The tab; the active one if left out.
    """

    def work(actor: Actor, tab: Tab) -> str:
        found = actor.wait(tab, duration, text)
        return tell(actor, tab, "Waited." if found else f"{text!r} did not appear.")

    return act(tab_id, work)


# mouse


def _click(button: str, count: int) -> Any:
    def click(target: Target, modifiers: str | None = None, tab_id: TabId = None) -> Any:
        return do(tab_id, lambda actor, tab: actor.click(tab, asdict(target), button, count, modifiers), "Clicked")

    return click


CLICKS = {
    "left_click": ("left", 1, "Click"), "right_click": ("right", 1, "Click with the right button"),
    "middle_click": ("middle", 1, "Click with the middle button"), "double_click": ("left", 2, "Click twice"),
    "triple_click": ("left", 3, "Click three times, which selects a line"),
}  # fmt: skip
ARGUMENTS = """

    Args:
        target: An element by reference, or a point of the page.
        modifiers: Keys to hold meanwhile, such as "ctrl" or "ctrl+shift".
        tab_id: The tab; the active one if left out.
    """
for _name, (_button, _count, _text) in CLICKS.items():
    _made = _click(_button, _count)
    _made.__name__, _made.__doc__ = _name, f"{_text} on an element or a point.{ARGUMENTS}"
    register_tool(_made)


@register_tool
def hover(target: Target, tab_id: TabId = None) -> Any:
    """Move the pointer to an element or a point.

    Args:
        target: An element by reference, or a point of the page.
        tab_id: The tab; the active one if left out.
    """
    return do(tab_id, lambda actor, tab: actor.move(tab, asdict(target)), "Moved")


@register_tool
def mouse_move(target: Point, tab_id: TabId = None) -> Any:
    """Move the pointer to a point.

    Args:
        target: A point of the page.
        tab_id: The tab; the active one if left out.
    """
    return do(tab_id, lambda actor, tab: actor.move(tab, asdict(target)), "Moved")


@register_tool
def left_mouse_down(target: Point, tab_id: TabId = None) -> Any:
    """Press the left button and hold it.

    Args:
        target: A point of the page.
        tab_id: The tab; the active one if left out.
    """
    return do(tab_id, lambda actor, tab: actor.press(tab, asdict(target), True), "Pressed")


@register_tool
def left_mouse_up(target: Point, tab_id: TabId = None) -> Any:
    """Let the left button go.

    Args:
        target: A point of the page.
        tab_id: The tab; the active one if left out.
    """
    return do(tab_id, lambda actor, tab: actor.press(tab, asdict(target), False), "Let go")


@register_tool
def left_click_drag(start: Target, target: Target, tab_id: TabId = None) -> Any:
    """Press at one place, move to another, let go there.

    Args:
        start: Where to press: an element by reference, or a point of the page.
        target: Where to let go.
        tab_id: The tab; the active one if left out.
    """
    return do(tab_id, lambda actor, tab: actor.drag(tab, [asdict(start), asdict(target)]), "Dragged")


@register_tool
def scroll(
    target: Point,
    scroll_direction: Literal["up", "down", "left", "right"],
    scroll_amount: int = 3,
    tab_id: TabId = None,
) -> Any:
    """Turn the mouse wheel at a point.

    Args:
        target: A point of the page.
        scroll_direction: Where to.
        scroll_amount: Notches of 100 pixels.
        tab_id: The tab; the active one if left out.
    """
    far = 100 * max(1, min(scroll_amount, 100))
    across = {"left": -far, "right": far}.get(scroll_direction, 0)
    down = {"up": -far, "down": far}.get(scroll_direction, 0)
    return do(tab_id, lambda actor, tab: actor.scroll(tab, target.x, target.y, across, down), "Scrolled")


@register_tool
def scroll_to(target: Element, tab_id: TabId = None) -> Any:
    """Scroll an element into view.

    Args:
        target: The element.
        tab_id: The tab; the active one if left out.
    """
    return do(tab_id, lambda actor, tab: actor.scroll_to(tab, target.ref), "Scrolled")


# keyboard, forms and files


@register_tool(name="type")
def type_text(text: str, tab_id: TabId = None) -> Any:
    """Type a text into what has the focus; a line break is Enter.

    Args:
        text: What to type.
        tab_id: The tab; the active one if left out.
    """
    return do(tab_id, lambda actor, tab: actor.type(tab, text), "Typed")


@register_tool
def key(text: str, repeat: int = 1, tab_id: TabId = None) -> Any:
    """Press keys: "Enter", "ctrl+a", or several divided by spaces.

    Args:
        text: The keys.
        repeat: How often.
        tab_id: The tab; the active one if left out.
    """
    return do(tab_id, lambda actor, tab: actor.keys(tab, text, repeat), "Pressed")


@register_tool
def hold_key(text: str, duration: float, tab_id: TabId = None) -> Any:
    """Hold a key or a chord down.

    Args:
        text: The key.
        duration: Seconds, at most 30.
        tab_id: The tab; the active one if left out.
    """
    return do(tab_id, lambda actor, tab: actor.hold(tab, text, duration), "Held")


@register_tool
def form_input(target: Element, value: str | float | bool | list[str], tab_id: TabId = None) -> Any:
    """Set the value of a form element: text, an option's text or value, several of a list, or whether a box is checked.

    Args:
        target: The element.
        value: What it is set to.
        tab_id: The tab; the active one if left out.
    """
    return do(tab_id, lambda actor, tab: actor.fill(tab, target.ref, value), "Set")


@register_tool
def file_upload(target: Element, paths: list[str], tab_id: TabId = None) -> Any:
    """Choose files for a file input: names of files that were downloaded or given, see list_downloads.

    Args:
        target: The file input.
        paths: Names of files.
        tab_id: The tab; the active one if left out.
    """
    return do(tab_id, lambda actor, tab: actor.upload(tab, target.ref, paths), "Chosen")


@register_tool
def list_downloads() -> Any:
    """List what was downloaded, and the files that can be uploaded."""

    def look(actor: Actor, tab: Tab) -> dict[str, Any]:
        files = sorted(each.name for each in actor.context.files.glob("*"))
        return {"downloads": actor.context.downloads(), "files": files}

    return act(None, look)


@register_tool
def read_download(name: str) -> Any:
    """Read a file that was downloaded, as text.

    Args:
        name: Its name.
    """
    return act(None, lambda actor, tab: actor.file(name).read_bytes()[:MOST_READ].decode("utf-8", "replace"))


@register_tool
def answer_dialogs(accept: bool, text: str = "") -> Any:
    """Say how the next questions of pages are answered (confirm, prompt). Without this they are dismissed.

    Args:
        accept: Whether they are accepted.
        text: What is written into a prompt.
    """

    def work(actor: Actor, tab: Tab) -> str:
        actor.context.dialogs = (accept, text)
        return "Noted."

    return act(None, work)


@register_tool
def answer(text: str) -> str:
    """Give the answer to a question that the task asks.

    Args:
        text: The answer.
    """
    episode.answer = text
    return "Noted."


# the shapes of others


@register_tool(hidden=True)
def computer(action: str, **arguments: Any) -> Any:
    """An action of Anthropic's computer tools (computer_20250124, _20251124 and the members of the toolset).

    Args:
        action: Such as "left_click", "type", "screenshot", "zoom".
        **arguments: What the action needs: coordinate, text, scroll_direction, and so on.
    """

    def work(actor: Actor, tab: Tab) -> Any:
        told = shapes.computer(actor, tab, {"action": action, **arguments})
        region = arguments.get("region") if action == "zoom" else None
        picture = Image(actor.screenshot(tab, region))
        said = [*([told] if told else []), *actor.context.take_notes()]
        return ["\n".join(said), picture] if said else picture

    return act(None, work)


@register_tool(hidden=True)
def openai_computer(actions: list[dict[str, Any]]) -> Any:
    """Actions of OpenAI's computer use, one after another; the answer is a screenshot.

    Args:
        actions: Such as {"type": "click", "button": "left", "x": 10, "y": 20}.
    """

    def work(actor: Actor, tab: Tab) -> Any:
        for each in actions:
            try:
                shapes.openai_action(actor, actor.context.tab(), each)
            except (KeyError, TypeError) as error:
                raise NotPossible(f"{each.get('type')}: {error} is missing or of a wrong type") from None
        return Image(actor.screenshot(actor.context.tab()))

    return act(None, work)


@register_tool(hidden=True)
def browsergym(action: str = "") -> Any:
    """Do an action of BrowserGym's action set and observe: the answer has the keys of its observations, and a picture.

    Args:
        action: Such as "click('12')"; without one it only observes. Elements have the numbers of their references.
    """

    def work(actor: Actor, tab: Tab) -> Any:
        error = ""
        if action:
            try:
                error = shapes.Gym(actor, answer).do(action)
            except CommandFailed as failed:
                error = str(failed)
            episode.last = {"action": action, "error": error}
        return [_observation(actor), Image(actor.screenshot(actor.context.tab()))]

    return act(None, work)


def _observation(actor: Actor) -> dict[str, Any]:
    tab, open_tabs = actor.context.tab(), actor.context.titles()
    seen = elements(actor.context, tab)
    focused = next((each["ref"] for each in seen if each["states"].get("focused") and each["ref"]), "")
    return {
        "goal": episode.world.instruction if episode.world else "",
        "url": tab.url,
        "open_pages_urls": [each["url"] for each in open_tabs],
        "open_pages_titles": [each["title"] for each in open_tabs],
        "active_page_index": [each["tab_id"] for each in open_tabs].index(tab.name),
        "axtree_txt": "\n".join("  " * each["depth"] + line(each) for each in seen)[:MOST_TEXT],
        "focused_element_bid": focused.removeprefix("ref_"),
        "last_action": episode.last["action"],
        "last_action_error": episode.last["error"],
        "elapsed_time": round(time.monotonic() - episode.started, 3),
        "notes": actor.context.take_notes(),
    }


# episodes


@register_function
def start(
    task: str = "", seed: int = 0, url: str = "", width: int = 1024, height: int = 768, files: list[str] | None = None
) -> dict[str, Any]:
    """Begin an episode in a new context.

    Args:
        task: "shop/buy", "miniwob/click-test", "folder/pages#index.html", a site without a task ("wiki"), or nothing.
        seed: The same seed gives the same task.
        url: Where to begin, without a task.
        width: Of the page, in pixels.
        height: Of the page, in pixels.
        files: Files of the project that the agent can upload.
    """
    given = [project_file(name) for name in files or []]
    world = episode.start(task, seed, url, (width, height))
    with episode.acting() as actor:
        for each in given:
            (actor.context.files / each.name).write_bytes(each.read_bytes())
    return {"instruction": world.instruction, "url": world.url, "task": world.name, "browser": episode.version}


@register_function
def list_tasks() -> list[str]:
    """The names of all tasks; those of MiniWoB++ where it is installed."""
    return list(task_names())


@register_reward(name="browser")
def reward() -> dict[str, Any]:
    """1 when the task is done: graded from the state of the site, or from what a MiniWoB++ page itself reported."""
    return episode.score()


@register_tasks
def tasks(site: str = "", seeds: int = 1, first_seed: int = 0) -> Iterator[dict[str, Any]]:
    """List the tasks, all or those of a site ("shop", "tickets", "wiki", "miniwob"), each with a number of seeds."""
    for name in task_names():
        if site and not name.startswith(f"{site}/"):
            continue
        for seed in range(first_seed, first_seed + seeds):
            yield {
                "id": f"{name}-{seed}", "instruction": "", "metadata": {"site": name.split("/")[0]},
                "setup": {"function": "start", "arguments": {"task": name, "seed": seed}},
                "reward": {"name": "browser"},
            }  # fmt: skip
