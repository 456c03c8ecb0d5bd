"""A ticket tracker: a list with filters, a board to drag tickets on, comments, labels, assignees."""

import random
from typing import Any

from sites.layout import page, select, table, text_input
from sites.serving import Refused, Request, Response, escape, redirect
from sites.state import State

HOST = "tickets.test"
SCHEMA = """
CREATE TABLE tickets (id INTEGER PRIMARY KEY, title TEXT NOT NULL, text TEXT NOT NULL, status TEXT NOT NULL,
  assignee TEXT NOT NULL, priority TEXT NOT NULL, duplicate_of INTEGER REFERENCES tickets (id));
CREATE TABLE labels (ticket INTEGER REFERENCES tickets (id), label TEXT NOT NULL, PRIMARY KEY (ticket, label));
CREATE TABLE comments (ticket INTEGER REFERENCES tickets (id), place INTEGER, text TEXT NOT NULL,
  PRIMARY KEY (ticket, place));
"""
STATUSES = ("open", "in progress", "done")
PEOPLE = ("", "Ada", "Chen", "Lena", "Omar", "Pia")
PRIORITIES = ("low", "normal", "high")
LABELS = ("bug", "crash", "docs", "feature", "login", "printing")
PARTS = ("The login page", "The report", "The printer dialog", "The calendar", "The search", "The invoice")
TROUBLES = {
    "crash": "crashes on start", "bug": "shows the wrong date", "docs": "has no manual", "feature": "needs a dark mode",
    "login": "forgets the password", "printing": "prints empty pages",
}  # fmt: skip
LINKS = {"Tickets": "/", "Board": "/board", "New ticket": "/new"}
DRAG = """
for (const card of document.querySelectorAll("[draggable]"))
  card.addEventListener("dragstart", event => event.dataTransfer.setData("text/plain", card.dataset.ticket));
for (const column of document.querySelectorAll(".column")) {
  column.addEventListener("dragover", event => event.preventDefault());
  column.addEventListener("drop", async event => {
    event.preventDefault();
    const form = new URLSearchParams({ticket: event.dataTransfer.getData("text/plain"), status: column.dataset.status});
    await fetch("/move", {method: "POST", body: form});
    location.reload();
  });
}
"""


def make(seed: int) -> State:
    """Return the tracker as it is at the beginning of an episode."""
    chance = random.Random(f"tickets {seed}")
    kinds = [(part, label) for part in PARTS for label in TROUBLES]
    chance.shuffle(kinds)
    state = State(SCHEMA, {})
    for number, (part, label) in enumerate(kinds[:18], 1):
        title = f"{part} {TROUBLES[label]}"
        state.insert("tickets", id=number, title=title, text=f"{title}. Seen in version {chance.randrange(2, 9)}.",
                     status=chance.choice(STATUSES), assignee=chance.choice(PEOPLE), priority=chance.choice(PRIORITIES),
                     duplicate_of=None)  # fmt: skip
        state.insert("labels", ticket=number, label=label)
    return state


class Tickets:
    """The tracker's pages over its state."""

    def __init__(self, state: State) -> None:
        self.state = state

    def create(self, title: str, text: str, priority: str, label: str) -> int:
        """Write a new ticket."""
        if not title.strip():
            raise Refused("A ticket needs a title.")
        _among(priority, PRIORITIES)
        number = self.state.insert("tickets", title=title.strip(), text=text.strip(), status="open", assignee="",
                                   priority=priority, duplicate_of=None)  # fmt: skip
        if label:
            self.state.insert("labels", ticket=number, label=_among(label, LABELS))
        return number

    def change(self, number: int, **fields: str) -> None:
        """Change status, assignee or priority."""
        self._ticket(number)
        allowed = {"status": STATUSES, "assignee": PEOPLE, "priority": PRIORITIES}
        for name, value in fields.items():
            self.state.run(f"UPDATE tickets SET {name} = ? WHERE id = ?", _among(value, allowed[name]), number)

    def comment(self, number: int, text: str) -> None:
        """Add a comment."""
        self._ticket(number)
        if not text.strip():
            raise Refused("The comment is empty.")
        place = self.state.rows("SELECT 1 FROM comments WHERE ticket = ?", number)
        self.state.insert("comments", ticket=number, place=len(place) + 1, text=text.strip().replace("\r\n", "\n"))

    def label(self, number: int, label: str) -> None:
        """Add a label, or take it away."""
        self._ticket(number)
        if not self.state.run("DELETE FROM labels WHERE ticket = ? AND label = ?", number, label):
            self.state.insert("labels", ticket=number, label=_among(label, LABELS))

    def close_as_duplicate(self, number: int, of: int) -> None:
        """Close a ticket as a duplicate of another one."""
        self._ticket(of)
        if number == of:
            raise Refused("A ticket is no duplicate of itself.")
        self.change(number, status="done")
        self.state.run("UPDATE tickets SET duplicate_of = ? WHERE id = ?", of, number)

    def __call__(self, request: Request) -> Response:
        parts = [each for each in request.path.split("/") if each]
        if request.method == "POST":
            return self._change(parts, request.form)
        if not parts:
            return self._list(request.query)
        if parts == ["board"]:
            return self._board()
        if parts == ["new"]:
            return self._new()
        if parts[0] == "ticket" and len(parts) == 2:
            return self._show(_number(parts[1]))
        return Response("<h1>404: there is no such page</h1>", 404)

    def _change(self, parts: list[str], form: Any) -> Response:
        what = "/".join(parts)
        if what == "new":
            names = ("title", "text", "priority", "label")
            return redirect(f"/ticket/{self.create(*(form.get(name, '') for name in names))}")
        number = _number(form.get("ticket"))
        if what == "change":
            self.change(number, **{name: form.get(name, "") for name in ("status", "assignee", "priority")})
        elif what == "move":
            self.change(number, status=form.get("status", ""))
        elif what == "comment":
            self.comment(number, form.get("text", ""))
        elif what == "label":
            self.label(number, form.get("label", ""))
        elif what == "duplicate":
            self.close_as_duplicate(number, _number(form.get("of")))
        else:
            return Response("<h1>404: there is no such page</h1>", 404)
        return redirect(f"/ticket/{number}")

    def _list(self, query: Any) -> Response:
        chosen = {name: query.get(name, "") for name in ("status", "assignee", "label")}
        found = self.state.rows(
            "SELECT * FROM tickets WHERE instr(lower(title), lower(?)) AND ? IN ('', status) AND ? IN ('', assignee) "
            "AND (? = '' OR id IN (SELECT ticket FROM labels WHERE label = ?)) ORDER BY id",
            query.get("q", ""), chosen["status"], chosen["assignee"], chosen["label"], chosen["label"],
        )  # fmt: skip
        known = {"status": STATUSES, "assignee": PEOPLE[1:], "label": LABELS}
        fields = "".join(
            select(name, name.capitalize(), [("", "any"), *((each, each) for each in options)], chosen[name])
            for name, options in known.items()
        )
        rows = [
            (str(each["id"]), f'<a href="/ticket/{each["id"]}">{escape(each["title"])}</a>', each["status"],
             each["assignee"] or "nobody", each["priority"], escape(", ".join(self._labels(each["id"]))))
            for each in found
        ]  # fmt: skip
        body = f"<form>{fields}<button>Filter</button></form><p>{len(found)} tickets</p>"
        columns = ("Number", "Title", "Status", "Assignee", "Priority", "Labels")
        return page("Tickets", "Tickets", body + table(columns, rows), LINKS, "/")

    def _board(self) -> Response:
        columns = ""
        for status in STATUSES:
            cards = "".join(
                f'<div class="card" draggable="true" data-ticket="{each["id"]}">'
                f"#{each['id']} {escape(each['title'])}</div>"
                for each in self.state.rows("SELECT * FROM tickets WHERE status = ? ORDER BY id", status)
            )
            start = f'<section class="column" data-status="{status}" aria-label="{status}">'
            columns += f"{start}<h2>{status}</h2>{cards}</section>"
        return page("Tickets", "Board", f'<div class="columns">{columns}</div>', LINKS, "/", DRAG)

    def _new(self) -> Response:
        labels = [("", "none"), *((each, each) for each in LABELS)]
        body = (
            f'<form method="post" action="/new">{text_input("title", "Title")}<label>Text <textarea name="text">'
            f"</textarea></label>{select('priority', 'Priority', [(each, each) for each in PRIORITIES], 'normal')}"
            f"{select('label', 'Label', labels)}<button>Create ticket</button></form>"
        )
        return page("Tickets", "New ticket", body, LINKS, "/")

    def _show(self, number: int) -> Response:
        each = self._ticket(number)
        hidden = f'<input type="hidden" name="ticket" value="{number}">'
        people = [(name, name or "nobody") for name in PEOPLE]
        comments = self.state.rows("SELECT text FROM comments WHERE ticket = ? ORDER BY place", number)
        said = (
            "".join(f'<div class="card"><pre>{escape(one["text"])}</pre></div>' for one in comments) or "<p>None.</p>"
        )
        twin = f"<p>Duplicate of {each['duplicate_of']}</p>" if each["duplicate_of"] else ""
        body = (
            f"<p>{escape(each['text'])}</p><p>Labels: {escape(', '.join(self._labels(number)) or 'none')}</p>{twin}"
            f'<form method="post" action="/change">{hidden}'
            f"{select('status', 'Status', [(one, one) for one in STATUSES], each['status'])}"
            f"{select('assignee', 'Assignee', people, each['assignee'])}"
            f"{select('priority', 'Priority', [(one, one) for one in PRIORITIES], each['priority'])}"
            "<button>Save</button></form>"
            f'<form method="post" action="/label">{hidden}{select("label", "Label", [(one, one) for one in LABELS])}'
            "<button>Add or remove label</button></form>"
            f'<form method="post" action="/duplicate">{hidden}{text_input("of", "Duplicate of", "", "number")}'
            "<button>Close as duplicate</button></form>"
            f'<h2>Comments</h2>{said}<form method="post" action="/comment">{hidden}<label>Comment '
            '<textarea name="text"></textarea></label><button>Comment</button></form>'
        )
        return page("Tickets", f"#{number} {each['title']}", body, LINKS, "/")

    def _labels(self, number: int) -> list[str]:
        return [row["label"] for row in self.state.rows("SELECT label FROM labels WHERE ticket = ? ORDER BY 1", number)]

    def _ticket(self, number: int) -> dict[str, Any]:
        found = self.state.row("SELECT * FROM tickets WHERE id = ?", number)
        if found is None:
            raise Refused(f"There is no ticket {number}.")
        return found


def _among(value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise Refused(f"{value!r} is not one of: {', '.join(each or 'nobody' for each in allowed)}")
    return value


def _number(text: Any) -> int:
    try:
        return int(str(text))
    except ValueError:
        raise Refused("That is no number.") from None
