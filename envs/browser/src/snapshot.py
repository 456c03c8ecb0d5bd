"""A page as an accessibility tree in text, with references that actions take."""

import re
from typing import Any

from tabs import Context, NotPossible, Tab

MOST_CHARACTERS = 50_000
MOST_FOUND = 20
INTERACTIVE = frozenset((
    "button", "checkbox", "combobox", "link", "listbox", "menuitem", "menuitemcheckbox", "menuitemradio", "option",
    "radio", "searchbox", "slider", "spinbutton", "switch", "tab", "textbox", "treeitem", "ColorWell", "Date",
    "DateTime", "InputTime", "PopUpButton", "MenuListPopup", "ComboBoxMenuButton", "DisclosureTriangle",
))  # fmt: skip
EDITED = frozenset(("searchbox", "spinbutton", "textbox"))
"""What is in these is their value."""
SKIPPED = frozenset(("none", "generic", "InlineTextBox", "ListMarker", "LineBreak", "MenuListPopup", "LayoutTable"))
STATES = (
    "checked", "pressed", "expanded", "selected", "disabled", "required", "readonly", "invalid", "focused", "level",
    "url",
)  # fmt: skip
Trees = dict[int | None, tuple[str, list[dict[str, Any]]]]
"""The frame and the nodes by the element that the frame is in."""
_TOKEN = re.compile(r"\w+")


def read(context: Context, tab: Tab, only: str = "", depth: int = 15, reference: str = "") -> str:
    """Return the page, or the part of it below an element, as indented lines."""
    lines: list[str] = []
    for each in elements(context, tab, reference):
        if each["depth"] > depth or (only == "interactive" and each["role"] not in INTERACTIVE):
            continue
        lines.append(("" if only == "interactive" else "  " * each["depth"]) + line(each))
    text = "\n".join(lines) or "(the page is empty)"
    if len(text) > MOST_CHARACTERS:
        cut = "\n[... cut off: read a part of it with ref, or a smaller depth]"
        text = text[: MOST_CHARACTERS - len(cut)] + cut
    return text


def find(context: Context, tab: Tab, query: str) -> str:
    """Return the elements whose role and name have most of the words of a query."""
    words = set(_TOKEN.findall(query.lower()))
    if not words:
        raise NotPossible("say in words what to find, such as 'search box'")
    scored = []
    for place, each in enumerate(elements(context, tab)):
        if not each["ref"]:
            continue
        said = set(_TOKEN.findall(f"{each['role']} {each['name']} {each['states'].get('value', '')}".lower()))
        score = len(words & said) + 0.5 * sum(any(word in other for other in said - words) for word in words - said)
        if score:
            scored.append((-score, each["role"] not in INTERACTIVE, len(each["name"]), place, line(each)))
    return "\n".join(each[-1] for each in sorted(scored)[:MOST_FOUND]) or f"nothing on the page matches {query!r}"


def line(element: dict[str, Any]) -> str:
    """Return an element as one line."""
    words = [element["role"]]
    if element["name"]:
        words.append('"' + element["name"].replace('"', "'") + '"')
    if element["ref"]:
        words.append(f"[{element['ref']}]")
    for name, value in element["states"].items():
        words.append(name if value is True else f"{name}={value}")
    return " ".join(words)


def elements(context: Context, tab: Tab, reference: str = "") -> list[dict[str, Any]]:
    """Return role, name, states, reference and depth of all elements, frames included, in their order."""
    start = context.node(tab, reference) if reference else None
    frames = _frames(context.call(tab, "Page.getFrameTree")["frameTree"])
    trees: Trees = {}
    for frame in frames:
        owner = None
        if frame != frames[0]:
            owner = context.call(tab, "DOM.getFrameOwner", {"frameId": frame}).get("backendNodeId")
        trees[owner] = frame, context.call(tab, "Accessibility.getFullAXTree", {"frameId": frame})["nodes"]
    found: list[dict[str, Any]] = []
    _walk(context, tab, trees, None, 0, found)
    if start is None:
        return found
    begin = next((place for place, each in enumerate(found) if each["node"] == start), None)
    if begin is None:
        raise NotPossible(f"{reference} cannot be seen any more: read the page again")
    depth = found[begin]["depth"]
    end = next((place for place in range(begin + 1, len(found)) if found[place]["depth"] <= depth), len(found))
    return [{**each, "depth": each["depth"] - depth} for each in found[begin:end]]


def _frames(tree: dict[str, Any]) -> list[str]:
    return [tree["frame"]["id"], *(each for child in tree.get("childFrames", []) for each in _frames(child))]


def _walk(context: Context, tab: Tab, trees: Trees, owner: int | None, depth: int, found: list[dict[str, Any]]) -> None:
    frame, nodes = trees.get(owner) or ("", [])
    known = {node["nodeId"]: node for node in nodes}
    if not nodes:
        return
    waiting = [(nodes[0]["nodeId"], depth, "", True)]
    while waiting:
        name, level, above, inside = waiting.pop()
        node = known.get(name)
        if node is None:
            continue
        role, text = _word(node, "role"), " ".join(_word(node, "name").split())
        shown = not node.get("ignored") and role not in SKIPPED and not (role == "StaticText" and text in ("", above))
        if role in ("generic", "none") and not node.get("ignored") and (text or _focusable(node)):
            shown = True
        if shown:
            backend = node.get("backendDOMNodeId")
            referenced = backend is not None and role != "RootWebArea" and not (role == "StaticText" and inside)
            found.append({
                "role": "text" if role == "StaticText" else role, "name": text[:1000], "depth": level, "node": backend,
                "ref": context.reference(tab, backend, frame) if referenced else "",
                "states": _states(node, role, text),
            })  # fmt: skip
        below = level + 1 if shown else level
        if role not in EDITED:
            more = (below, text if shown else above, shown and role != "RootWebArea")
            waiting += [(child, *more) for child in reversed(node.get("childIds", []))]
        if node.get("backendDOMNodeId") is not None and node["backendDOMNodeId"] in trees:
            _walk(context, tab, trees, node["backendDOMNodeId"], below, found)


def _word(node: dict[str, Any], key: str) -> str:
    return str(node.get(key, {}).get("value", "") or "")


def _focusable(node: dict[str, Any]) -> bool:
    return any(each["name"] == "focusable" and each["value"].get("value") for each in node.get("properties", []))


def _states(node: dict[str, Any], role: str, text: str) -> dict[str, Any]:
    states: dict[str, Any] = {}
    value = _word(node, "value")
    if value and value != text:
        states["value"] = '"' + value[:500].replace('"', "'") + '"'
    for each in node.get("properties", []):
        name, given = each["name"], each["value"].get("value")
        if name not in STATES or given is False or given in ("false", None, "") or (name == "url" and role != "link"):
            continue
        states[name] = True if given is True or given == "true" else str(given)[:300]
    return states
