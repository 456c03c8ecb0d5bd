"""``aenv push``: publish a project's bundle."""

from __future__ import annotations

import asyncio
import getpass
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aenv.cli.hub_options import with_hub
from aenv.cli.options import work_dir_option
from aenv.cli.output import Output, note, output_option, size
from aenv.cli.progress import Progress
from aenv.errors import Conflict, UsageError

if TYPE_CHECKING:
    from aenv.project.packing import Packed
    from aenv.schema.envhub import Hub, Pushed, PushRequest, Schemas


@click.command(name="push")
@click.argument("name", required=False)
@work_dir_option
@click.option("-v", "--version", help="Publish it as this version.  [default: the one in config.json]")
@click.option("--force", is_flag=True, help="Replace a version that is not released.")
@click.option("--dry-run", is_flag=True, help="Show what would be sent, and send nothing.")
@click.option("--public/--private", default=None, help="Let everyone who reaches the hub read it, or not.")
@click.option("--release", is_flag=True, help="Release the version at once, so that it never changes.")
@click.option("--no-lock", is_flag=True, help="Do not lock the packages of requirements.txt.")
@click.option("--no-load", is_flag=True, help="Do not load the project to find its tools; the hub then lists none.")
@click.option(
    "--no-sandbox",
    is_flag=True,
    help="Load the project as you, without a sandbox: it can read and change whatever you can.",
)
@output_option
def command(
    name: str | None,
    work_dir: Path,
    version: str | None,
    force: bool,
    dry_run: bool,
    public: bool | None,
    release: bool,
    no_lock: bool,
    no_load: bool,
    no_sandbox: bool,
    output: Output,
) -> None:
    """Publish a project in the hub. NAME, if given, must be the project's own.

    Only what the hub does not have is sent, so a push that was cut off goes on where it was.
    """
    from aenv import config
    from aenv.project import publish
    from aenv.project.lock import lock
    from aenv.project.packing import pack
    from aenv.schema.envhub import Schemas

    if not no_lock and lock(work_dir.absolute()):
        note("locked the requirements")
    packed = pack(work_dir, version=version)
    bundle = packed.bundle
    if name is not None and name != bundle.name:
        raise UsageError(f"the project in {packed.root} is called {bundle.name}, not {name}")
    for warning in packed.warnings:
        note(f"Warning: {warning}")
    if dry_run:
        facts = with_hub(lambda hub: _dry_run(hub, packed))
        output.show(facts, lambda: _tell_dry(facts))
        return
    try:
        is_there = with_hub(lambda hub: _look(hub, packed, force))
        schemas = (
            Schemas() if no_load or (is_there and not force) else asyncio.run(_load(packed, sandbox=not no_sandbox))
        )
        request = publish.request_for(packed, schemas, author=config.load().owner or _user(), public=public)
        pushed = with_hub(lambda hub: _push(hub, packed, request, force, release))
    except Conflict as error:
        raise Conflict("\n".join([error.message, *error.details.get("differs", ())]), details=error.details) from None
    said = {"outcome": pushed.outcome, **pushed.version.model_dump()}
    output.show(said, lambda: _tell(pushed))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as containers have them
        return ""


async def _load(packed: Packed, *, sandbox: bool) -> Schemas:
    """Load the files of the bundle, not those of the project: a file left out of the bundle is noticed now."""
    from aenv.project.discovery import describe
    from aenv.project.unpack import unpack

    async def fetch(digest: str) -> bytes:
        return packed.read(digest)

    with tempfile.TemporaryDirectory(prefix="aenv-push-") as folder:
        root = Path(folder) / packed.bundle.name
        await unpack(packed.bundle, fetch, root)
        return await describe(root, packed.bundle.name, sandbox=sandbox)


async def _push(hub: Hub, packed: Packed, request: PushRequest, force: bool, release: bool) -> Pushed:
    from aenv.project import publish

    total = sum((await publish.missing(hub, packed)).values())
    with Progress("sending", total) as progress:
        pushed = await publish.publish(hub, packed, request, force=force, progress=progress)
    if request.public not in (None, pushed.version.public):  # only the visibility changed
        await hub.set_public(packed.bundle.name, bool(request.public))
    if release:
        version = await hub.release(packed.bundle.name, packed.bundle.version)
        return pushed.model_copy(update={"version": version})
    return pushed


async def _look(hub: Hub, packed: Packed, force: bool) -> bool:
    """Return whether the hub has the version with this content; other content is refused here."""
    from aenv.project import publish

    known = await publish.published(hub, packed)
    if known is not None and not force:
        await publish.refuse_other_content(hub, packed, known)
    return known is not None and known.digest == packed.bundle.digest()


async def _dry_run(hub: Hub, packed: Packed) -> dict[str, Any]:
    from aenv.project import publish

    bundle = packed.bundle
    known = await publish.published(hub, packed)
    same = known is not None and known.digest == bundle.digest()
    outcome = "created" if known is None else "unchanged" if same else "conflict"
    absent = await publish.missing(hub, packed)
    return {
        "name": bundle.name,
        "version": bundle.version,
        "digest": bundle.digest(),
        "outcome": outcome,
        "blobs": len(absent),
        "bytes": sum(absent.values()),
        "files": [file.path for file in bundle.files],
    }


def _tell_dry(facts: dict[str, Any]) -> str:
    title = click.style(f"{facts['name']}@{facts['version']}", bold=True)
    outcomes = {
        "created": "would be new",
        "unchanged": "is there already, with the same content",
        "conflict": "is there already, with other content",
    }
    head = f"{title} {outcomes[facts['outcome']]}; {facts['blobs']} blobs of {size(facts['bytes'])} would be sent"
    return "\n".join([head, *(f"  {path}" for path in facts["files"])])


def _tell(pushed: Pushed) -> str:
    version = pushed.version
    title = click.style(f"{version.name}@{version.version}", bold=True)
    outcomes = {"created": "published", "unchanged": "was there already", "replaced": "replaced"}
    lines = [
        f"{title} {outcomes[pushed.outcome]}  {size(version.size)}, {version.status}",
        f"  digest  {version.digest}",
    ]
    if version.tools:
        lines.append(f"  tools   {', '.join(version.tools)}")
    return "\n".join(lines)
