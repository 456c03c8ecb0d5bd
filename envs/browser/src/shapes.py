"""The actions of other toolsets, done with the same browser.

Anthropic's `computer` tools, OpenAI's computer-use actions, and BrowserGym's action strings. Nothing here evaluates
what it is given: an action string is parsed, and only calls of known names with literal arguments are done.
"""

import ast
import time
from collections.abc import Callable
from typing import Any

from actions import MOST_WAIT, Actor
from tabs import NotPossible, Tab

CLICKS = {
    "left_click": ("left", 1), "right_click": ("right", 1), "middle_click": ("middle", 1),
    "double_click": ("left", 2), "triple_click": ("left", 3),
}  # fmt: skip
OPENAI_BUTTONS = {"left": "left", "right": "right", "wheel": "middle", "back": "back", "forward": "forward"}
OPENAI_KEYS = {"CTRL": "ctrl", "ALT": "alt", "SHIFT": "shift", "CMD": "meta", "META": "meta", "OPTION": "alt"}


def at(x: Any, y: Any) -> dict[str, Any]:
    """Return a point as a target."""
    return {"type": "coordinate", "x": float(x), "y": float(y)}


def _pair(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise NotPossible(f"{name} must be [x, y]")
    return at(*value)


def computer(actor: Actor, tab: Tab, given: dict[str, Any]) -> str:
    """Do an action of Anthropic's computer tools; return what it tells."""
    action = str(given.get("action", ""))
    text = str(given.get("text") or "")
    point = _pair(given["coordinate"], "coordinate") if given.get("coordinate") is not None else None
    here = point or at(*tab.mouse)
    if action in CLICKS:
        return actor.click(tab, here, *CLICKS[action], text or None)
    if action == "mouse_move":
        actor.move(tab, here)
    elif action == "left_click_drag":
        actor.drag(tab, [_pair(given.get("start_coordinate"), "start_coordinate"), here])
    elif action in ("left_mouse_down", "left_mouse_up"):
        actor.press(tab, point, action == "left_mouse_down")
    elif action == "key":
        actor.keys(tab, text, int(given.get("repeat") or 1))
    elif action == "hold_key":
        actor.hold(tab, text, float(given.get("duration") or 1))
    elif action == "type":
        actor.type(tab, text)
    elif action == "scroll":
        far = 100 * int(given.get("scroll_amount") or 3)
        way = {"up": (0, -far), "down": (0, far), "left": (-far, 0), "right": (far, 0)}.get(
            str(given.get("scroll_direction"))
        )
        if way is None:
            raise NotPossible("scroll_direction must be up, down, left or right")
        actor.scroll(tab, here["x"], here["y"], *way)
    elif action == "wait":
        actor.wait(tab, float(given.get("duration") or 1))
    elif action == "cursor_position":
        return f"X={tab.mouse[0]:g},Y={tab.mouse[1]:g}"
    elif action not in ("screenshot", "zoom"):
        raise NotPossible(f"unknown action {action!r}")
    return ""


def openai_action(actor: Actor, tab: Tab, given: dict[str, Any]) -> None:
    """Do an action of OpenAI's computer-use models."""
    kind = str(given.get("type", ""))
    held = "+".join(_key(each) for each in given.get("keys") or []) or None
    if kind == "click":
        button = OPENAI_BUTTONS.get(str(given.get("button", "left")))
        if button is None:
            raise NotPossible(f"unknown button {given.get('button')!r}")
        actor.click(tab, at(given["x"], given["y"]), button, 1, held)
    elif kind == "double_click":
        actor.click(tab, at(given["x"], given["y"]), "left", 2, held)
    elif kind == "drag":
        actor.drag(tab, [at(each["x"], each["y"]) for each in given["path"]])
    elif kind == "keypress":
        actor.keys(tab, held or "")
    elif kind == "move":
        actor.move(tab, at(given["x"], given["y"]))
    elif kind == "scroll":
        actor.scroll(tab, given["x"], given["y"], given.get("scroll_x", 0), given.get("scroll_y", 0))
    elif kind == "type":
        actor.type(tab, str(given["text"]))
    elif kind == "wait":
        actor.wait(tab, 1.0)
    elif kind != "screenshot":
        raise NotPossible(f"unknown action {kind!r}")


def _key(name: str) -> str:
    return OPENAI_KEYS.get(name.upper(), name.capitalize() if len(name) > 1 else name)


class Gym:
    """BrowserGym's actions. An element's bid is the number of its reference: ``click('12')`` is ref_12."""

    def __init__(self, actor: Actor, answer: Callable[[str], None]) -> None:
        self.actor, self._answer = actor, answer
        self.actions: dict[str, Callable[..., Any]] = {
            "noop": self._noop, "scroll": self._scroll,
            "click": lambda bid, button="left", modifiers=(): self._click(_at(bid), button, 1, modifiers),
            "dblclick": lambda bid, button="left", modifiers=(): self._click(_at(bid), button, 2, modifiers),
            "hover": lambda bid: self.actor.move(self.tab, _at(bid)),
            "fill": lambda bid, value, enable_autocomplete_menu=False: self.actor.fill(self.tab, str(bid), value),
            "clear": lambda bid: self.actor.fill(self.tab, str(bid), ""),
            "focus": lambda bid: self.actor.focus(self.tab, str(bid)),
            "press": self._press,
            "select_option": lambda bid, options: self.actor.fill(self.tab, str(bid), options),
            "drag_and_drop": lambda from_bid, to_bid: self.actor.drag(self.tab, [_at(from_bid), _at(to_bid)]),
            "upload_file": lambda bid, file: self.actor.upload(
                self.tab, str(bid), file if isinstance(file, list) else [file]),
            "mouse_move": lambda x, y: self.actor.move(self.tab, at(x, y)),
            "mouse_down": lambda x, y, button="left": self.actor.press(self.tab, at(x, y), True, button),
            "mouse_up": lambda x, y, button="left": self.actor.press(self.tab, at(x, y), False, button),
            "mouse_click": lambda x, y, button="left": self._click(at(x, y), button, 1),
            "mouse_dblclick": lambda x, y, button="left": self._click(at(x, y), button, 2),
            "mouse_drag_and_drop": lambda from_x, from_y, to_x, to_y: self.actor.drag(
                self.tab, [at(from_x, from_y), at(to_x, to_y)]),
            "keyboard_press": lambda key: self.actor.keys(self.tab, key),
            "keyboard_down": lambda key: self.actor.key_state(self.tab, key, True),
            "keyboard_up": lambda key: self.actor.key_state(self.tab, key, False),
            "keyboard_type": lambda text: self.actor.type(self.tab, text),
            "keyboard_insert_text": lambda text: self.actor.context.call(self.tab, "Input.insertText", {"text": text}),
            "goto": lambda url: self.actor.context.navigate(self.tab, url),
            "go_back": lambda: self.actor.context.history(self.tab, -1),
            "go_forward": lambda: self.actor.context.history(self.tab, 1),
            "new_tab": lambda: self.actor.context.open() and None,
            "tab_close": lambda: self.actor.context.close_tab(self.tab.name),
            "tab_focus": self._tab_focus,
            "send_msg_to_user": lambda text: self._answer(str(text)),
            "report_infeasible": lambda reason: self._answer(f"infeasible: {reason}"),
        }  # fmt: skip

    @property
    def tab(self) -> Tab:
        return self.actor.context.tab()

    def do(self, text: str) -> str:
        """Do the actions of a text; return the error of the first that failed, or nothing."""
        try:
            calls = [self._call(statement) for statement in ast.parse(text.strip()).body]
            if not calls:
                return "there is no action"
            for action, arguments, named in calls:
                action(*arguments, **named)
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
            return f"{type(error).__name__}: {str(error)[:500]}"
        return ""

    def _call(self, statement: ast.stmt) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise NotPossible("an action is a call, such as click('12')")
        action = self.actions.get(call.func.id)
        if action is None:
            raise NotPossible(f"unknown action {call.func.id}; there are: {', '.join(self.actions)}")
        named = {each.arg: ast.literal_eval(each.value) for each in call.keywords if each.arg}
        return action, [ast.literal_eval(each) for each in call.args], named

    def _click(self, target: dict[str, Any], button: str, count: int, modifiers: Any = ()) -> None:
        self.actor.click(self.tab, target, button, count, "+".join(modifiers) or None)

    def _press(self, bid: Any, key_comb: str) -> None:
        self.actor.focus(self.tab, str(bid))
        self.actor.keys(self.tab, key_comb)

    def _scroll(self, delta_x: float, delta_y: float) -> None:
        width, height = self.actor.context.size
        self.actor.scroll(self.tab, width / 2, height / 2, delta_x, delta_y)

    def _noop(self, wait_ms: float = 1000) -> None:
        time.sleep(min(max(wait_ms, 0) / 1000, MOST_WAIT))

    def _tab_focus(self, index: int) -> None:
        names = list(self.actor.context.tabs)
        if not 0 <= index < len(names):
            raise NotPossible(f"there is no tab {index}; there are {len(names)}")
        self.actor.context.active = names[index]


def _at(bid: Any) -> dict[str, Any]:
    return {"type": "ref", "ref": str(bid)}
