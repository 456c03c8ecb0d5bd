"""What can be said of a web page by reading it: structure, names, references, and whether it fits a phone."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

VOID = frozenset(("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"))
CLOSED_BY_ITSELF = frozenset(
    ("html", "head", "body", "p", "li", "dt", "dd", "option", "tr", "td", "th", "thead", "tbody", "tfoot", "colgroup")
)
_OUTSIDE = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//|#|$)", re.IGNORECASE)
_PIXELS = re.compile(r"(?<![-\w])width\s*:\s*(\d{3,})px", re.IGNORECASE)
_SELECTOR = re.compile(r"^([a-z][a-z0-9-]*)?((?:[#.][\w-]+|\[[\w-]+(?:=[^\]]+)?\])*)$", re.IGNORECASE)
_PAIRS = {")": "(", "]": "[", "}": "{"}


@dataclass
class Page:
    """A page as it was read."""

    elements: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    """Inline scripts."""

    def matches(self, selector: str) -> int:
        """Return how many elements a simple selector matches: ``form``, ``#add``, ``ul.items``, ``input[type=text]``.

        Raises:
            ValueError: the selector is not one of these.
        """
        found = _SELECTOR.match(selector)
        if not found or not selector:
            raise ValueError(f"unknown selector {selector!r}")
        tag, conditions = found[1], re.findall(r"[#.][\w-]+|\[[^\]]+\]", found[2] or "")
        return sum((not tag or name == tag.lower()) and all(_fits(each, given) for each in conditions)
                   for name, given in self.elements)  # fmt: skip


def _fits(condition: str, given: Mapping[str, str]) -> bool:
    if condition[0] == "#":
        return given.get("id") == condition[1:]
    if condition[0] == ".":
        return condition[1:] in given.get("class", "").split()
    name, equals, value = condition[1:-1].partition("=")
    return name.lower() in given and (not equals or given[name.lower()] == value.strip("\"'"))


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.page = Page()
        self._open: list[tuple[str, int]] = []
        self._script: list[str] | None = None
        self.doctype = False
        self._ids: set[str] = set()

    def handle_decl(self, decl: str) -> None:
        self.doctype = self.doctype or decl.lower().startswith("doctype")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.page.elements.append((tag, given))
        name = given.get("id")
        if name is not None and name in self._ids:
            self.page.problems.append(f"line {self.getpos()[0]}: the id {name!r} is used twice")
        self._ids.add(name or "")
        if tag == "img" and "alt" not in given:
            self.page.problems.append(f"line {self.getpos()[0]}: an image without alt")
        if tag not in VOID:
            self._open.append((tag, self.getpos()[0]))
        if tag == "script" and "src" not in given:
            self._script = []

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self._script.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "script" and self._script is not None:
            self.page.scripts.append("".join(self._script))
            self._script = None
        names = [name for name, _ in self._open]
        if tag in VOID or tag not in names:
            self.page.problems.append(f"line {self.getpos()[0]}: </{tag}> closes nothing")
            return
        while self._open:
            name, line = self._open.pop()
            if name == tag:
                return
            if name not in CLOSED_BY_ITSELF:
                self.page.problems.append(f"line {line}: <{name}> is not closed")

    def end(self) -> Page:
        self.close()
        for name, line in self._open:
            if name not in CLOSED_BY_ITSELF:
                self.page.problems.append(f"line {line}: <{name}> is not closed")
        if not self.doctype:
            self.page.problems.append("no <!doctype html>")
        tags = {tag for tag, _ in self.page.elements}
        if "title" not in tags:
            self.page.problems.append("no <title>")
        if not any(tag == "html" and given.get("lang") for tag, given in self.page.elements):
            self.page.problems.append("<html> has no lang")
        return self.page


def read_page(text: str) -> Page:
    """Read a page and say what is wrong with it."""
    reader = _Reader()
    reader.feed(text)
    return reader.end()


def responsive_problems(html: str, css: str = "") -> list[str]:
    """Say what keeps a page from fitting a phone."""
    page, problems = read_page(html), []
    viewport = [
        given.get("content", "") for tag, given in page.elements if tag == "meta" and given.get("name") == "viewport"
    ]
    if not any("width=device-width" in each.replace(" ", "") for each in viewport):
        problems.append('no <meta name="viewport" content="width=device-width">')
    for width in _PIXELS.findall(html + css):
        if int(width) > 480:
            problems.append(f"a width of {width}px is wider than a phone")
    return problems


def references(page: Page) -> list[str]:
    """Return the files of the project that a page names."""
    wanted = [given[name] for tag, given in page.elements for name in ("src", "href")
              if name in given and tag in ("script", "link", "img")]  # fmt: skip
    return [
        each.split("?")[0].split("#")[0].lstrip("/").removeprefix("./") for each in wanted if not _OUTSIDE.match(each)
    ]


def script_problems(text: str) -> list[str]:
    """Say which brackets and strings of a script are not closed. It is no parser: browsers find the rest."""
    plain = _without_strings(text)
    if plain is None:
        return ["a string or comment is not closed"]
    opened: list[tuple[str, int]] = []
    for number, line in enumerate(plain.split("\n"), 1):
        for char in line:
            if char in "([{":
                opened.append((char, number))
            elif char in _PAIRS and (not opened or opened.pop()[0] != _PAIRS[char]):
                return [f"line {number}: {char} closes nothing"]
    return [f"line {number}: {char} is not closed" for char, number in opened[-1:]]


def _without_strings(text: str) -> str | None:
    """Return a script with strings, comments and simple regular expressions blanked; None if one is not closed."""
    out: list[str] = []
    at = 0
    while at < len(text):
        char, pair = text[at], text[at : at + 2]
        if pair in ("//", "/*"):
            end = text.find("\n" if pair == "//" else "*/", at + 2)
            if end < 0:
                return "".join(out) if pair == "//" else None
            out.append("\n" * text.count("\n", at, end))
            at = end if pair == "//" else end + 2
        elif char in "\"'`" or (char == "/" and _begins_regex("".join(out[-20:]))):
            end = at + 1
            while end < len(text) and text[end] != char and (char == "`" or text[end] != "\n"):
                end += 2 if text[end] == "\\" else 1
            if end >= len(text) or text[end] != char:
                return None
            out.append("\n" * text.count("\n", at, end) + "0")
            at = end + 1
        else:
            out.append(char)
            at += 1
    return "".join(out)


def _begins_regex(before: str) -> bool:
    last = before.rstrip()
    return not last or last[-1] in "(,=:[!&|?{};\n" or last.endswith("return")


def check_project(files: Mapping[str, str], entry: str = "index.html") -> list[str]:
    """Say what is wrong with a project before it is shown: the build's errors."""
    if entry not in files:
        return [f"there is no {entry}"]
    problems = []
    for name, text in files.items():
        if name.endswith(".html"):
            page = read_page(text)
            problems += [f"{name}: {each}" for each in page.problems]
            problems += [f"{name}: there is no {each}" for each in references(page) if each not in files]
            for script in page.scripts:
                problems += [f"{name}: script: {each}" for each in script_problems(script)]
        elif name.endswith((".js", ".mjs")):
            problems += [f"{name}: {each}" for each in script_problems(text)]
    return problems


def passes(check: Mapping[str, Any], files: Mapping[str, str]) -> bool:
    """Return whether a project passes one check.

    Raises:
        ValueError: the check is none of those that this environment knows.
    """
    kind, path = check.get("kind"), str(check.get("path", "index.html"))
    if kind == "file":
        return path in files
    if kind == "builds":
        return not check_project(files)
    if kind == "element":
        return path in files and read_page(files[path]).matches(str(check["select"])) >= int(check.get("count", 1))
    if kind == "text":
        return re.search(str(check["pattern"]), files.get(path, "")) is not None
    if kind == "responsive":
        css = "\n".join(text for name, text in files.items() if name.endswith(".css"))
        return path in files and not responsive_problems(files[path], css)
    raise ValueError(f"unknown check {kind!r}; expected file, builds, element, text, responsive or browser")
