"""How pages of the sites look: one frame, and the parts that they share."""

from collections.abc import Iterable, Mapping

from sites.serving import Response, escape

STYLE = """
*{box-sizing:border-box}body{font:15px/1.45 "DejaVu Sans",sans-serif;margin:0;color:#1c2733;background:#f5f7f9}
header{background:#1f3a5f;color:#fff;padding:10px 24px;display:flex;gap:18px;align-items:center;flex-wrap:wrap}
header a{color:#fff}header b{font-size:18px}header form{margin-left:auto}main{padding:18px 24px;max-width:1100px}
table{border-collapse:collapse;background:#fff;width:100%}
td,th{border:1px solid #d5dde5;padding:6px 10px;text-align:left}
input,select,textarea,button{font:inherit;padding:5px 8px;border:1px solid #9fb0c0;border-radius:4px}
button{background:#2563a8;color:#fff;border-color:#2563a8;cursor:pointer}button.quiet{background:#fff;color:#2563a8}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(210px,1fr));gap:12px}
.card{background:#fff;border:1px solid #d5dde5;border-radius:6px;padding:12px}.note{background:#e5f4e3;padding:8px 12px}
.columns{display:grid;grid-template-columns:repeat(3,1fr);gap:12px}.column{background:#e9eef3;padding:10px;min-height:320px}
label{display:block;margin:8px 0}form.inline{display:inline}.muted{color:#5d6b78}pre{white-space:pre-wrap}
"""


def page(site: str, title: str, body: str, links: Mapping[str, str], search: str = "", script: str = "") -> Response:
    """Return a page of a site: its links above, and a search field where `search` names what answers it."""
    menu = "".join(f'<a href="{escape(to)}">{escape(text)}</a>' for text, to in links.items())
    field = (
        f'<form action="{search}" role="search"><input name="q" aria-label="Search" placeholder="Search">'
        "<button>Search</button></form>"
        if search
        else ""
    )
    return Response(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)} - {escape(site)}</title>'
        f"<style>{STYLE}</style></head><body><header><b>{escape(site)}</b>{menu}{field}</header>"
        f"<main><h1>{escape(title)}</h1>{body}</main>{f'<script>{script}</script>' if script else ''}</body></html>"
    )


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table; cells are HTML already."""
    head = "".join(f"<th>{escape(each)}</th>" for each in columns)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def select(name: str, label: str, options: Iterable[tuple[str, str]], chosen: str = "") -> str:
    """Return a labelled list of options."""
    listed = "".join(
        f'<option value="{escape(value)}"{" selected" if value == chosen else ""}>{escape(text)}</option>'
        for value, text in options
    )
    return f'<label>{escape(label)} <select name="{name}">{listed}</select></label>'


def text_input(name: str, label: str, value: str = "", kind: str = "text") -> str:
    """Return a labelled input."""
    return f'<label>{escape(label)} <input name="{name}" type="{kind}" value="{escape(value)}"></label>'


def button_form(action: str, text: str, **hidden: object) -> str:
    """Return a form that is one button."""
    fields = "".join(f'<input type="hidden" name="{name}" value="{escape(value)}">' for name, value in hidden.items())
    return (
        f'<form class="inline" method="post" action="{escape(action)}">{fields}<button>{escape(text)}</button></form>'
    )
