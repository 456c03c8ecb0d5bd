"""A wiki: pages with links, search, editing, history, reverting and renaming."""

import random
import re
from typing import Any
from urllib.parse import quote, unquote

from sites.layout import button_form, page, table, text_input
from sites.serving import Refused, Request, Response, escape, redirect
from sites.state import State

HOST = "wiki.test"
SCHEMA = """
CREATE TABLE pages (name TEXT PRIMARY KEY, text TEXT NOT NULL);
CREATE TABLE versions (name TEXT NOT NULL, number INTEGER NOT NULL, text TEXT NOT NULL, summary TEXT NOT NULL,
  PRIMARY KEY (name, number));
"""
TOWNS = ("Ashford", "Brackwell", "Colby", "Dunmere", "Elmstead", "Farleigh", "Gatton", "Hollow Hill")
RIVERS = ("Arne", "Bourne", "Clyst", "Dart")
LINKS = {"Home": "/", "All pages": "/all", "New page": "/new"}
_LINK = re.compile(r"\[\[([^\[\]\n]+)\]\]")
NONSENSE = "bananas bananas bananas"


def make(seed: int) -> State:
    """Return the wiki as it is at the beginning of an episode."""
    chance = random.Random(f"wiki {seed}")
    pages = {"Home": "Welcome. Towns: " + ", ".join(f"[[{town}]]" for town in TOWNS) + "."}
    for town in TOWNS:
        river, people, mayor = chance.choice(RIVERS), chance.randrange(900, 60000), chance.choice(("Ida", "Jo", "Kim"))
        pages[town] = (
            f"{town} is a town on the [[{river}]].\nPopulation: {people}\nMayor: {mayor} {chance.choice(RIVERS)}\n"
            f"Founded: {chance.randrange(1100, 1900)}"
        )
    for river in RIVERS:
        pages[river] = f"The {river} is a river.\nLength: {chance.randrange(20, 300)} km"
    spoiled = chance.choice(TOWNS)
    state = State(SCHEMA, {})
    for name, text in pages.items():
        state.insert("versions", name=name, number=1, text=text, summary="first version")
        if name == spoiled:
            text = NONSENSE
            state.insert("versions", name=name, number=2, text=text, summary="lol")
        state.insert("pages", name=name, text=text)
    return state


class Wiki:
    """The wiki's pages over its state."""

    def __init__(self, state: State) -> None:
        self.state = state

    def write(self, name: str, text: str, summary: str = "") -> None:
        """Write a page, new or again."""
        name, text = name.strip(), text.strip().replace("\r\n", "\n")
        if not name or not text or "/" in name or len(name) > 80:
            raise Refused("A page needs a title without slashes, and a text.")
        number = len(self.state.rows("SELECT 1 FROM versions WHERE name = ?", name)) + 1
        self.state.run("INSERT OR REPLACE INTO pages VALUES (?, ?)", name, text)
        self.state.insert("versions", name=name, number=number, text=text, summary=summary.strip())

    def revert(self, name: str, number: int) -> None:
        """Make an earlier version the present one."""
        found = self.state.row("SELECT text FROM versions WHERE name = ? AND number = ?", name, number)
        if found is None:
            raise Refused("There is no such version.")
        self.write(name, found["text"], f"back to version {number}")

    def rename(self, name: str, new: str) -> None:
        """Give a page another name, here and in all links to it."""
        new = new.strip()
        if not new or "/" in new or self.state.row("SELECT 1 FROM pages WHERE name = ?", new):
            raise Refused("Choose a title that is free.")
        self.text(name)
        self.state.run("UPDATE pages SET name = ? WHERE name = ?", new, name)
        self.state.run("UPDATE versions SET name = ? WHERE name = ?", new, name)
        self.state.run("UPDATE pages SET text = replace(text, ?, ?)", f"[[{name}]]", f"[[{new}]]")

    def text(self, name: str) -> str:
        """Return the text of a page."""
        found = self.state.row("SELECT text FROM pages WHERE name = ?", name)
        if found is None:
            raise Refused(f"There is no page {name}.")
        return str(found["text"])

    def __call__(self, request: Request) -> Response:
        parts = [unquote(each) for each in request.path.split("/") if each]
        if request.method == "POST":
            return self._change(parts, request.form)
        if not parts:
            return self._show("Home")
        if parts == ["all"]:
            return self._all()
        if parts == ["search"]:
            return self._search(request.query.get("q", ""))
        if parts == ["new"]:
            return self._editor("", "")
        if len(parts) == 2 and parts[0] == "page":
            return self._show(parts[1])
        if len(parts) == 2 and parts[0] == "edit":
            return self._editor(parts[1], self.text(parts[1]))
        if len(parts) == 2 and parts[0] == "history":
            return self._history(parts[1])
        return Response("<h1>404: there is no such page</h1>", 404)

    def _change(self, parts: list[str], form: Any) -> Response:
        name = form.get("name", "")
        if parts == ["write"]:
            self.write(name, form.get("text", ""), form.get("summary", ""))
        elif parts == ["revert"]:
            number = form.get("number", "")
            self.revert(name, int(number) if number.isdigit() else 0)
        elif parts == ["rename"]:
            self.rename(name, form.get("new", ""))
            name = form.get("new", "")
        else:
            return Response("<h1>404: there is no such page</h1>", 404)
        return redirect(_address("page", name.strip()))

    def _show(self, name: str) -> Response:
        text = _LINK.sub(
            lambda link: f'<a href="{_address("page", link[1])}">{link[1]}</a>', escape(self.text(name))
        ).replace("\n", "<br>")
        links = f'<p><a href="{_address("edit", name)}">Edit</a> <a href="{_address("history", name)}">History</a></p>'
        return page("Wiki", name, f'<div class="card">{text}</div>{links}', LINKS, "/search")

    def _editor(self, name: str, text: str) -> Response:
        title = f'<input type="hidden" name="name" value="{escape(name)}">' if name else text_input("name", "Title")
        rename = (
            '<h2>Rename</h2><form method="post" action="/rename">'
            f'<input type="hidden" name="name" value="{escape(name)}">'
            f"{text_input('new', 'New title')}<button>Rename</button></form>" if name else ""
        )  # fmt: skip
        body = (
            f'<form method="post" action="/write">{title}<label>Text <textarea name="text" rows="12" cols="70">'
            f"{escape(text)}</textarea></label>{text_input('summary', 'Summary')}"
            f"<button>Save page</button></form>{rename}"
        )
        return page("Wiki", f"Edit {name}" if name else "New page", body, LINKS, "/search")

    def _history(self, name: str) -> Response:
        rows = [
            (str(each["number"]), escape(each["summary"]), f"<pre>{escape(each['text'])}</pre>",
             button_form("/revert", f"Revert to {each['number']}", name=name, number=each["number"]))
            for each in self.state.rows("SELECT * FROM versions WHERE name = ? ORDER BY number DESC", name)
        ]  # fmt: skip
        return page("Wiki", f"History of {name}", table(("Version", "Summary", "Text", ""), rows), LINKS, "/search")

    def _all(self) -> Response:
        return self._links("All pages", self.state.rows("SELECT name FROM pages ORDER BY name"))

    def _search(self, words: str) -> Response:
        query = "SELECT name FROM pages WHERE instr(lower(name || ' ' || text), lower(?)) ORDER BY name"
        return self._links(f"Pages with {words}", self.state.rows(query, words))

    def _links(self, title: str, rows: list[dict[str, Any]]) -> Response:
        items = "".join(
            f'<li><a href="{_address("page", each["name"])}">{escape(each["name"])}</a></li>' for each in rows
        )
        return page("Wiki", title, f"<ul>{items}</ul>", LINKS, "/search")


def _address(what: str, name: str) -> str:
    return f"/{what}/{quote(name, safe='')}"
