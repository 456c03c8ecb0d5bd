"""What a person does with a page: mouse, keyboard, forms, files."""

import base64
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from cdp import CommandFailed
from keyboard import MODIFIER_KEYS, chord, describe, modifiers_of
from tabs import Context, NotPossible, Tab

BUTTONS = {"left": 1, "right": 2, "middle": 4, "back": 8, "forward": 16}
MOST_TYPED = 20_000
MOST_WAIT = 30.0
NOTCH = 100
STEPS = 8

_FILL = """function (value) {
  const tag = this.tagName, type = (this.type || "").toLowerCase();
  const tell = (...names) => names.forEach(
    name => this.dispatchEvent(new Event(name, {bubbles: true, composed: true})));
  if (this.disabled) throw new Error("the element is disabled");
  if (tag === "SELECT") {
    const wanted = Array.isArray(value) ? value : [value];
    const options = [...this.options].filter(each => wanted.some(
      one => each.value === String(one) || each.text.trim() === String(one).trim()));
    if (!options.length)
      throw new Error("no such option; there are " + [...this.options].map(each => each.text.trim()).join(", "));
    for (const each of this.options) each.selected = options.includes(each);
    tell("input", "change");
    return "done";
  }
  if (tag === "INPUT" && (type === "checkbox" || type === "radio")) {
    if (this.checked !== (value === true || value === "true" || value === "on")) return "click";
    return "done";
  }
  if (tag === "INPUT" && type === "file") throw new Error("use file_upload for this element");
  if (tag === "INPUT" && ["button", "submit", "reset", "image", "hidden"].includes(type))
    throw new Error("this element has no value to fill in");
  if (tag === "INPUT" && ["color", "date", "datetime-local", "month", "range", "time", "week"].includes(type)) {
    Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(this, String(value));
    if (type !== "range" && this.value !== String(value)) throw new Error("not a value for an input of type " + type);
    tell("input", "change");
    return "done";
  }
  if (tag !== "INPUT" && tag !== "TEXTAREA" && !this.isContentEditable)
    throw new Error("this element has no value to fill in");
  if (this.readOnly) throw new Error("the element is read-only");
  this.focus();
  if (this.isContentEditable) {
    const all = document.createRange();
    all.selectNodeContents(this);
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(all);
  } else this.select();
  return "type";
}"""
_LEAVE = "function () { this.blur(); this.focus() }"
_COVERED = """function (x, y) {
  let found = this.ownerDocument.elementFromPoint(x, y);
  while (found && found.shadowRoot && found.shadowRoot.elementFromPoint(x, y) !== found) {
    const inner = found.shadowRoot.elementFromPoint(x, y);
    if (!inner) break;
    found = inner;
  }
  if (!found || found === this || this.contains(found) || found.contains(this)) return "";
  if (found.closest("label") && found.closest("label").control === this) return "";
  return found.tagName.toLowerCase() + (found.id ? "#" + found.id : "");
}"""
_TEXT = "function () { return document.body ? document.body.innerText : '' }"
_HAS = "function (text) { return !!document.body && document.body.innerText.includes(text) }"


class Actor:
    """Acts on the tabs of an episode."""

    def __init__(self, context: Context) -> None:
        self.context = context

    # mouse

    def point(self, tab: Tab, target: dict[str, Any], into_view: bool = True) -> tuple[float, float]:
        """Return where a target is: a coordinate, or the middle of what is seen of an element."""
        if target.get("type") != "ref" and not target.get("ref"):
            x, y = float(target.get("x", 0)), float(target.get("y", 0))
            width, height = self.context.size
            if not (0 <= x < width and 0 <= y < height):
                raise NotPossible(f"({x:g}, {y:g}) lies outside of the page's {width} x {height} pixels")
            return x, y
        reference = str(target.get("ref", ""))
        node = self.context.node(tab, reference)
        try:
            if into_view:
                self.context.call(tab, "DOM.scrollIntoViewIfNeeded", {"backendNodeId": node})
            quads = self.context.call(tab, "DOM.getContentQuads", {"backendNodeId": node})["quads"]
        except CommandFailed as error:
            raise NotPossible(f"{reference} is not shown ({error}): read the page again") from None
        for quad in quads:
            left, right = _within(quad[0::2], self.context.size[0])
            top, bottom = _within(quad[1::2], self.context.size[1])
            if right - left >= 1 and bottom - top >= 1:
                return (left + right) / 2, (top + bottom) / 2
        raise NotPossible(f"{reference} has no size, or lies outside of the page: nothing can be done with it")

    def click(
        self, tab: Tab, target: dict[str, Any], button: str = "left", count: int = 1, modifiers: str | None = None
    ) -> str:
        """Click, and return a warning if something else lies over the element."""
        if button not in BUTTONS:
            raise NotPossible(f"unknown button {button!r}; there are {', '.join(BUTTONS)}")
        held = modifiers_of(modifiers)
        x, y = self.point(tab, target)
        warning = ""
        if target.get("ref"):
            try:
                over = self.context.run(tab, _COVERED, x, y, node=self.context.node(tab, str(target["ref"])))
                warning = f"{over} lies over {target['ref']} and got the click" if over else ""
            except (CommandFailed, NotPossible):
                warning = ""
        self._mouse(tab, "mouseMoved", x, y, held=held)
        for number in range(1, count + 1):
            self._mouse(tab, "mousePressed", x, y, button, number, held)
            self._mouse(tab, "mouseReleased", x, y, button, number, held)
        self.context.settle(tab)
        return warning

    def move(self, tab: Tab, target: dict[str, Any]) -> None:
        """Move the pointer."""
        self._mouse(tab, "mouseMoved", *self.point(tab, target))
        self.context.settle(tab)

    def press(self, tab: Tab, target: dict[str, Any] | None, down: bool, button: str = "left") -> None:
        """Press the mouse button down or let it go."""
        x, y = self.point(tab, target) if target else tab.mouse
        self._mouse(tab, "mouseMoved", x, y, button if not down else "none")
        self._mouse(tab, "mousePressed" if down else "mouseReleased", x, y, button, 1)
        self.context.settle(tab)

    def drag(self, tab: Tab, path: list[dict[str, Any]]) -> None:
        """Press at the first point, move over the others, let go at the last one."""
        if len(path) < 2:
            raise NotPossible("a drag needs two points or more")
        for each in reversed(path):
            self.point(tab, each)
        points = [self.point(tab, each, into_view=False) for each in path]
        tab.drag = None
        self.context.call(tab, "Input.setInterceptDrags", {"enabled": True})
        try:
            self._mouse(tab, "mouseMoved", *points[0])
            self._mouse(tab, "mousePressed", *points[0], "left", 1)
            for (x, y), (to_x, to_y) in pairwise(points):
                for step in range(1, STEPS + 1):
                    part = step / STEPS
                    self._drag_to(tab, x + (to_x - x) * part, y + (to_y - y) * part)
            x, y = points[-1]
            if tab.drag is not None:
                self._drag_event(tab, "drop", x, y)
            self._mouse(tab, "mouseReleased", x, y, "left", 1)
        finally:
            tab.drag = None
            self.context.call(tab, "Input.setInterceptDrags", {"enabled": False})
        self.context.settle(tab)

    def _drag_to(self, tab: Tab, x: float, y: float) -> None:
        if tab.drag is None:
            self._mouse(tab, "mouseMoved", x, y, "left")
            self.context.settle(tab, 1.0)
            if tab.drag is not None:  # the page takes it over as a drag of its own
                self._drag_event(tab, "dragEnter", x, y)
        else:
            self._drag_event(tab, "dragOver", x, y)

    def _drag_event(self, tab: Tab, kind: str, x: float, y: float) -> None:
        self.context.call(tab, "Input.dispatchDragEvent", {"type": kind, "x": x, "y": y, "data": tab.drag})

    def _mouse(
        self, tab: Tab, kind: str, x: float, y: float, button: str = "none", count: int = 0, held: int = 0
    ) -> None:
        tab.mouse = (x, y)
        pressed = BUTTONS.get(button, 0) if kind != "mouseReleased" else 0
        event = {"type": kind, "x": x, "y": y, "button": button, "buttons": pressed, "clickCount": count}
        self.context.call(tab, "Input.dispatchMouseEvent", {**event, "modifiers": held})

    def scroll(self, tab: Tab, x: float, y: float, right: float, down: float) -> None:
        """Turn the wheel at a point, by pixels."""
        event = {"type": "mouseWheel", "x": x, "y": y, "deltaX": right, "deltaY": down}
        self.context.call(tab, "Input.dispatchMouseEvent", event)
        self.context.settle(tab)

    def scroll_to(self, tab: Tab, reference: str) -> None:
        """Scroll an element into view."""
        self.point(tab, {"type": "ref", "ref": reference})
        self.context.settle(tab)

    # keyboard

    def type(self, tab: Tab, text: str) -> None:
        """Type a text into what has the focus."""
        if len(text) > MOST_TYPED:
            raise NotPossible(f"at most {MOST_TYPED} characters can be typed at once; fill the element instead")
        sent = []
        for sign in text.replace("\r\n", "\n"):
            if sign in "\n\t":
                sent += self._key(tab, "Enter" if sign == "\n" else "Tab", 0)
            elif sign.isascii() and sign.isprintable():
                sent += self._key(tab, sign, 0)
            else:
                sent.append(self.context.browser.send("Input.insertText", {"text": sign}, tab.session))
        for answer in sent:
            self.context.browser.result(answer, "typing")
        self.context.settle(tab)

    def keys(self, tab: Tab, text: str, repeat: int = 1) -> None:
        """Press chords, divided by spaces."""
        if not 1 <= repeat <= 100:
            raise NotPossible("repeat must be from 1 to 100")
        for each in (text.split() or [" "]) * repeat:
            modifiers, key = chord(each)
            self._modifiers(tab, modifiers, "rawKeyDown")
            for answer in self._key(tab, key, modifiers) if key else []:
                self.context.browser.result(answer, "pressing a key")
            self._modifiers(tab, modifiers, "keyUp")
        self.context.settle(tab)

    def hold(self, tab: Tab, text: str, seconds: float) -> None:
        """Hold a chord down."""
        modifiers, key = chord(text)
        event = {**describe(key, modifiers), "modifiers": modifiers} if key else None
        self._modifiers(tab, modifiers, "rawKeyDown")
        if event:
            self.context.call(tab, "Input.dispatchKeyEvent", {**event, "type": "keyDown"})
        time.sleep(min(max(seconds, 0), MOST_WAIT))
        if event:
            self.context.call(tab, "Input.dispatchKeyEvent", {**event, "type": "keyUp"})
        self._modifiers(tab, modifiers, "keyUp")
        self.context.settle(tab)

    def key_state(self, tab: Tab, name: str, down: bool) -> None:
        """Press one key down, or let it go."""
        modifiers, key = chord(name)
        if key:
            kind = "keyDown" if down else "keyUp"
            self.context.call(tab, "Input.dispatchKeyEvent", {**describe(key, modifiers), "type": kind})
        else:
            self._modifiers(tab, modifiers, "rawKeyDown" if down else "keyUp")

    def _key(self, tab: Tab, key: str, modifiers: int) -> list[Any]:
        event = {**describe(key, modifiers), "modifiers": modifiers}
        down = {**event, "type": "keyDown" if "text" in event else "rawKeyDown"}
        up = {name: value for name, value in event.items() if name != "text"}
        send = self.context.browser.send
        return [send("Input.dispatchKeyEvent", each, tab.session) for each in (down, {**up, "type": "keyUp"})]

    def _modifiers(self, tab: Tab, modifiers: int, kind: str) -> None:
        for bit, (key, code, number) in MODIFIER_KEYS.items():
            if modifiers & bit:
                event = {"key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": modifiers}
                self.context.call(tab, "Input.dispatchKeyEvent", {**event, "type": kind})

    # forms and files

    def fill(self, tab: Tab, reference: str, value: Any) -> None:
        """Set the value of a form element."""
        node = self.context.node(tab, reference)
        how = self.context.run(tab, _FILL, value, node=node)
        if how == "click":
            self.click(tab, {"type": "ref", "ref": reference})
        elif how == "type":
            text = str(value)
            if text:
                self.context.call(tab, "Input.insertText", {"text": text})
            else:
                self.keys(tab, "Delete")
            self.context.run(tab, _LEAVE, node=node)  # as a person does, which tells the page of the change
        self.context.settle(tab)

    def focus(self, tab: Tab, reference: str) -> None:
        """Give an element the focus."""
        self.context.call(tab, "DOM.focus", {"backendNodeId": self.context.node(tab, reference)})

    def upload(self, tab: Tab, reference: str, names: list[str]) -> None:
        """Choose files for a file input. Only files of the episode can be chosen."""
        paths = [self.file(name) for name in names]
        node = self.context.node(tab, reference)
        wanted = {"files": [str(path) for path in paths], "backendNodeId": node}
        try:
            self.context.call(tab, "DOM.setFileInputFiles", wanted)
        except CommandFailed as error:
            raise NotPossible(f"{reference} takes no files: {error}") from None
        self.context.settle(tab)

    def file(self, name: str) -> Path:
        """Return the path of a file of the episode.

        Raises:
            NotPossible: there is none of this name.
        """
        found = self.context.files / Path(name).name
        if name != Path(name).name or found.is_symlink() or not found.is_file():
            there = ", ".join(sorted(each.name for each in self.context.files.glob("*"))) or "none"
            raise NotPossible(f"there is no file {name!r}; there are: {there}")
        return found

    # looking

    def text(self, tab: Tab) -> str:
        """Return the text of the page as it is shown."""
        return str(self.context.run(tab, _TEXT))

    def wait(self, tab: Tab, seconds: float, text: str = "") -> bool:
        """Wait for a time or until the page shows a text; return whether it does."""
        until = time.monotonic() + min(max(seconds, 0), MOST_WAIT)
        while True:
            if text and self.context.run(tab, _HAS, text):
                return True
            left = until - time.monotonic()
            if left <= 0:
                return not text
            time.sleep(min(left, 0.05) if text else left)

    def screenshot(self, tab: Tab, region: list[int] | None = None, kind: str = "png") -> bytes:
        """Return a picture of the page, or of a part of it that is enlarged."""
        wanted: dict[str, Any] = {"format": kind, "optimizeForSpeed": True}
        if kind == "jpeg":
            wanted["quality"] = 80
        if region is not None:
            left, top, right, bottom = region
            width, height = self.context.size
            if not (0 <= left < right <= width and 0 <= top < bottom <= height):
                raise NotPossible(f"the region must lie within 0, 0, {width}, {height}")
            scale = min(4.0, width / (right - left), height / (bottom - top))
            view = self.context.call(tab, "Page.getLayoutMetrics")["cssVisualViewport"]
            x, y = left + view["pageX"], top + view["pageY"]
            wanted["clip"] = {"x": x, "y": y, "width": right - left, "height": bottom - top, "scale": scale}
        return base64.b64decode(self.context.call(tab, "Page.captureScreenshot", wanted)["data"])


def _within(places: list[float], most: float) -> tuple[float, float]:
    return max(0.0, min(places)), min(most, max(places))
