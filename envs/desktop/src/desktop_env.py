"""A desktop for an agent: screenshots, mouse, keyboard and windows, in the shapes of Anthropic's and OpenAI's tools."""

import atexit
import os
import random
import stat
from collections.abc import Iterator
from typing import Any

from screen import Desktop, NotPossible
from x11 import DisplayLost

from aenv import Image, StateDestroyed, ToolResult, register_function, register_reward, register_tasks, register_tool

CLICKS = {
    "left_click": ("left", 1), "right_click": ("right", 1), "middle_click": ("middle", 1),
    "double_click": ("left", 2), "triple_click": ("left", 3),
}  # fmt: skip
OPENAI_KEYS = {"CTRL": "ctrl", "ALT": "alt", "SHIFT": "shift", "CMD": "super", "META": "super", "OPTION": "alt"}
WAYS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
WORDS = ("amber", "birch", "cobalt", "delta", "ember", "fjord", "garnet", "harbor")
MOST_READ = 1 << 20
desktop = Desktop()
atexit.register(desktop.close)
episode: dict[str, Any] = {"task": "", "wanted": {}}


def act(work: Any) -> Any:
    """Do something. What cannot be done is a result, and no failure of the environment."""
    try:
        return work()
    except (NotPossible, DisplayLost, OSError) as error:
        return ToolResult([{"type": "text", "text": str(error)}], is_error=True)


@register_tool
def computer(
    action: str,
    coordinate: list[int] | None = None,
    text: str = "",
    start_coordinate: list[int] | None = None,
    scroll_direction: str = "down",
    scroll_amount: int = 3,
    duration: float = 0,
    repeat: int = 1,
    region: list[int] | None = None,
) -> Any:
    """Use the mouse and the keyboard, and see the screen afterwards.

    Args:
        action: key, hold_key, type, cursor_position, mouse_move, left_mouse_down, left_mouse_up, left_click,
            left_click_drag, right_click, middle_click, double_click, triple_click, scroll, wait, screenshot or zoom.
        coordinate: [x, y] in pixels of the screen; where the pointer is if left out.
        text: What to type; the keys, such as "ctrl+s"; or the keys to hold while clicking.
        start_coordinate: Where a drag begins.
        scroll_direction: up, down, left or right.
        scroll_amount: Notches of the wheel.
        duration: Seconds, for hold_key and wait, at most 30.
        repeat: How often a key is pressed.
        region: [left, top, right, bottom] that zoom shows.
    """

    def work() -> Any:
        place = _pair(coordinate) if coordinate is not None else desktop.display.pointer()
        if action in CLICKS:
            desktop.click(*place, *CLICKS[action], text)
        elif action == "mouse_move":
            desktop.move(*place)
        elif action == "left_click_drag":
            desktop.drag([_pair(start_coordinate), place])
        elif action in ("left_mouse_down", "left_mouse_up"):
            if coordinate is not None:
                desktop.move(*place)
            desktop.press(action == "left_mouse_down")
        elif action in ("key", "hold_key"):
            desktop.keys(text, repeat, duration if action == "hold_key" else 0)
        elif action == "type":
            desktop.type(text)
        elif action == "scroll":
            if scroll_direction not in WAYS:
                raise NotPossible("scroll_direction must be up, down, left or right")
            right, down = WAYS[scroll_direction]
            desktop.scroll(*place, right * scroll_amount, down * scroll_amount)
        elif action == "wait":
            desktop.keys("", 1, duration or 1)
        elif action == "cursor_position":
            return f"X={place[0]},Y={place[1]}"
        elif action == "zoom":
            return Image(desktop.display.screenshot(*_region(region)))
        elif action != "screenshot":
            raise NotPossible(f"unknown action {action!r}")
        return Image(desktop.display.screenshot())

    return act(work)


@register_tool
def screenshot() -> Any:
    """See the screen."""
    return act(lambda: Image(desktop.display.screenshot()))


@register_tool
def list_windows() -> Any:
    """List the open windows: number and title."""
    return act(lambda: [{"window": each.id, "title": each.title} for each in desktop.display.windows()])


@register_tool
def activate_window(window: int) -> Any:
    """Bring a window to the front.

    Args:
        window: Its number.
    """

    def work() -> str:
        if window not in [each.id for each in desktop.display.windows()]:
            raise NotPossible(f"there is no window {window}; see list_windows")
        desktop.display.activate(window)
        desktop.settle()
        return "Done."

    return act(work)


@register_tool(hidden=True)
def openai_computer(actions: list[dict[str, Any]]) -> Any:
    """Actions of OpenAI's computer use, one after another; the answer is a screenshot.

    Args:
        actions: Such as {"type": "click", "button": "left", "x": 10, "y": 20}.
    """

    def work() -> Image:
        for each in actions:
            try:
                _openai(each)
            except (KeyError, TypeError) as error:
                raise NotPossible(f"{each.get('type')}: {error} is missing or of a wrong type") from None
        return Image(desktop.display.screenshot())

    return act(work)


def _openai(given: dict[str, Any]) -> None:
    kind = str(given.get("type", ""))
    held = "+".join(OPENAI_KEYS.get(each.upper(), each) for each in given.get("keys") or [])
    if kind in ("click", "double_click"):
        button, count = str(given.get("button", "left")), 2 if kind == "double_click" else 1
        desktop.click(int(given["x"]), int(given["y"]), button, count, held)
    elif kind == "drag":
        desktop.drag([(int(each["x"]), int(each["y"])) for each in given["path"]])
    elif kind == "keypress":
        desktop.keys(held)
    elif kind == "move":
        desktop.move(int(given["x"]), int(given["y"]))
    elif kind == "scroll":
        far = [int(given.get(name, 0)) // 100 for name in ("scroll_x", "scroll_y")]
        desktop.scroll(int(given["x"]), int(given["y"]), *far)
    elif kind == "type":
        desktop.type(str(given["text"]))
    elif kind == "wait":
        desktop.keys("", 1, 1.0)
    elif kind != "screenshot":
        raise NotPossible(f"unknown action {kind!r}")


def _pair(value: list[int] | None) -> tuple[int, int]:
    if value is None or len(value) != 2:
        raise NotPossible("a coordinate is [x, y]")
    return value[0], value[1]


def _region(value: list[int] | None) -> tuple[int, int, int, int]:
    width, height = desktop.display.size
    if (
        value is None
        or len(value) != 4
        or not (0 <= value[0] < value[2] <= width and 0 <= value[1] < value[3] <= height)
    ):
        raise NotPossible(f"region is [left, top, right, bottom] within {width} x {height}")
    return value[0], value[1], value[2], value[3]


# episodes


@register_function
def start(task: str = "", seed: int = 0, width: int = 1024, height: int = 768) -> dict[str, Any]:
    """Begin an episode: an empty home folder, and the programs of the task.

    Args:
        task: "letter", "correct", "sort", or nothing.
        seed: The same seed gives the same task.
        width: Of the screen.
        height: Of the screen.
    """
    if task and task not in TASKS:
        raise NotPossible(f"unknown task {task!r}; there are {', '.join(TASKS)}")
    if not (200 <= width <= 2560 and 200 <= height <= 2560):
        raise NotPossible("width and height must be from 200 to 2560")
    desktop.start((width, height))
    instruction = ""
    episode["task"], episode["wanted"] = task, {}
    if task:
        instruction, episode["wanted"] = TASKS[task](random.Random(f"{task} {seed}"))
    return {"instruction": instruction, "task": task, "home": str(desktop.home)}


def _letter(chance: random.Random) -> tuple[str, dict[str, str]]:
    text = " ".join(chance.sample(WORDS, 4))
    desktop.run(["mousepad", "--disable-server"])
    desktop.wait_for("mousepad")
    return f"In the editor, write the line '{text}' and save it as letter.txt in Documents.", {
        "Documents/letter.txt": text
    }


def _correct(chance: random.Random) -> tuple[str, dict[str, str]]:
    words = chance.sample(WORDS, 6)
    wrong, right = chance.choice(words), "zircon"
    (desktop.home / "Documents" / "list.txt").write_text("\n".join(words) + "\n")
    desktop.run(["mousepad", "--disable-server", "Documents/list.txt"])
    desktop.wait_for("list.txt")
    fixed = "\n".join(right if each == wrong else each for each in words)
    return f"In list.txt, replace the word '{wrong}' by '{right}' and save the file.", {"Documents/list.txt": fixed}


def _sort(chance: random.Random) -> tuple[str, dict[str, str]]:
    names = chance.sample(WORDS, 5)
    for name in names:
        (desktop.home / f"{name}.txt").write_text(name)
    desktop.run(["xterm"])
    desktop.wait_for("xterm")
    moved = sorted(names)[:2]
    wanted = {f"kept/{name}.txt" if name in moved else f"{name}.txt": name for name in names}
    return f"With the terminal, move {moved[0]}.txt and {moved[1]}.txt into a new folder called kept.", wanted


TASKS = {"letter": _letter, "correct": _correct, "sort": _sort}


@register_reward(name="desktop")
def reward() -> dict[str, Any]:
    """1 when the files of the home folder are as the task wants them."""
    if not episode["task"]:
        raise RuntimeError("this episode has no task: begin one with start")
    if not desktop.home.is_dir():
        raise StateDestroyed("the home folder is gone")
    wrong = [name for name, text in episode["wanted"].items() if _text(name) != text]
    # What was there at the beginning and should be elsewhere must not be left behind.
    wrong += [f"{each.name} is left" for each in desktop.home.glob("*.txt") if each.name not in episode["wanted"]]
    return {"score": 0.0 if wrong else 1.0, "differences": wrong}


def _text(name: str) -> str | None:
    """Return the text of a file of the home folder, or None; links and what is no file are none."""
    try:
        folder = os.open(desktop.home, os.O_PATH | os.O_DIRECTORY)
        try:
            for part in name.split("/")[:-1]:
                inner = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
                os.close(folder)
                folder = inner
            file = os.open(name.split("/")[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        finally:
            os.close(folder)
        with open(file, "rb") as opened:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return None
            return opened.read(MOST_READ).decode("utf-8", "replace").rstrip("\n")
    except OSError:
        return None


@register_tasks
def tasks(seeds: int = 1) -> Iterator[dict[str, Any]]:
    """List the tasks, each with a number of seeds."""
    for name in TASKS:
        for seed in range(seeds):
            yield {
                "id": f"{name}-{seed}", "instruction": "", "reward": {"name": "desktop"},
                "setup": {"function": "start", "arguments": {"task": name, "seed": seed}},
            }  # fmt: skip
