"""``aenv get``: show one environment of the hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from aenv.cli.hub.hub_options import document, reference, state, with_hub
from aenv.cli.output import Output, columns, format_option, size

if TYPE_CHECKING:
    from aenv.schema.envhub import EnvSummary, EnvVersion, Hub
    from aenv.schema.ref import EnvRef

VERSIONS = 20


@click.command(name="get")
@click.argument("name")
@click.option("-v", "--version", help="Version, if not part of NAME.  [default: the newest]")
@format_option(default=Output.JSON)
def command(name: str, version: str | None, output: Output) -> None:
    """Show NAME[@VERSION]: its settings, tools, functions and rewards.

    NAME alone is its newest release; NAME@1, NAME@^1.2, NAME@1.2.0 and NAME@sha256:… name others.
    """
    ref = reference(name, version)
    found, others = with_hub(lambda hub: _get(hub, ref, output))
    output.show(document(found), lambda: _tell(found, others))


async def _get(hub: Hub, ref: EnvRef, output: Output) -> tuple[EnvVersion, list[EnvSummary]]:
    found = await hub.get(ref.name, ref.want)
    others = (await hub.versions(ref.name, limit=VERSIONS)).items if output is Output.TABLE else []
    return found, others


def _tell(found: EnvVersion, others: list[EnvSummary]) -> str:
    rows = [
        ("status", state(found)),
        ("description", found.description),
        ("tags", ", ".join(found.tags)),
        ("author", found.author),
        ("digest", found.digest),
        ("files", f"{found.files}, {size(found.size)}"),
        ("images", ", ".join(str(each.get("content")) for each in found.artifacts if each.get("type") == "image")),
        ("needs", ", ".join(found.dependencies)),
        ("created", found.created_at),
        ("deprecated", found.deprecated or ""),
        ("yanked", found.yanked or ""),
        *_offers("tools", found.schemas.tools),
        *_offers("functions", found.schemas.functions),
        *_offers("rewards", found.schemas.rewards),
        ("versions", ", ".join(each.version for each in others)),
    ]
    title = click.style(f"{found.name}@{found.version}", bold=True)
    return f"{title}\n{columns([row for row in rows if row[1]])}"


def _offers(kind: str, each: list[dict[str, object]]) -> list[tuple[str, str]]:
    return [
        (kind if number == 0 else "", f"{one.get('name')}  {str(one.get('description') or '').partition(chr(10))[0]}")
        for number, one in enumerate(each)
    ]
