"""``aenv push``: publish a project's bundle."""

from __future__ import annotations

import asyncio
import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aenv.cli.hub.hub_options import with_hub
from aenv.cli.options import work_dir_option
from aenv.cli.output import Output, note, output_option, size
from aenv.cli.progress import ProgressBar
from aenv.errors import Conflict, LoadError, UsageError
from aenv.isolation.files.scratch_folders import scratch_folder

if TYPE_CHECKING:
    from aenv.project.bundles.packing import Packed
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
    """Publish a project in the hub. NAME, if given, must be the project's own, or its folder.

    Only what the hub does not have is sent, so a push that was interrupted continues where it stopped.
    """
    from aenv import config
    from aenv.hub.open_hub import place
    from aenv.project import publish
    from aenv.schema.envhub import Schemas

    settings = config.load()
    packed = _pack(name, work_dir, version, lock=not no_lock)
    if dry_run:
        facts = {**with_hub(lambda hub: _dry_run(hub, packed)), "hub": place(settings)}
        output.show(facts, lambda: _dry_run_summary(facts))
        return
    try:
        is_published = with_hub(lambda hub: _is_published(hub, packed, force))
        schemas = (
            Schemas() if no_load or (is_published and not force) else asyncio.run(_load(packed, sandbox=not no_sandbox))
        )
        request = publish.request_for(packed, schemas, author=settings.owner or _user(), public=public)
        pushed = with_hub(lambda hub: _push(hub, packed, request, force, release))
    except Conflict as error:
        raise Conflict("\n".join([error.message, *error.details.get("differs", ())]), details=error.details) from None
    where = place(settings)
    result = {"outcome": pushed.outcome, "hub": where, **pushed.version.model_dump()}
    output.show(result, lambda: _summary(pushed, where))


def _pack(name: str | None, work_dir: Path, version: str | None, *, lock: bool) -> Packed:
    """Lock and pack the project in a folder, or in the folder below it that has the given name."""
    from aenv.project.bundles.packing import pack
    from aenv.project.lock import lock_if_possible
    from aenv.project.manifest import FILE_NAME

    if name is not None and not (work_dir / FILE_NAME).exists() and (work_dir / name / FILE_NAME).is_file():
        work_dir, name = work_dir / name, None
    if lock:
        lock_if_possible(work_dir.absolute(), say=note)
    packed = pack(work_dir, version=version)
    if name is not None and name != packed.bundle.name:
        raise UsageError(f"the project in {packed.root} is called {packed.bundle.name}, not {name}")
    for warning in packed.warnings:
        note(f"Warning: {warning}")
    return packed


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as containers have them
        return ""


async def _load(packed: Packed, *, sandbox: bool) -> Schemas:
    """Load the files of the bundle, not those of the project: a file left out of the bundle is noticed now."""
    from aenv.engines.package_layers import folders_of
    from aenv.project.bundles.unpack import unpack
    from aenv.project.discovery import describe

    async def fetch(digest: str) -> bytes:
        return packed.read(digest)

    with scratch_folder("push") as folder:
        root = Path(folder) / packed.bundle.name
        await unpack(packed.bundle, fetch, root)
        try:
            packages = [] if sandbox else await folders_of(root)
            return await describe(root, packed.bundle.name, sandbox=sandbox, packages=packages)
        except LoadError as error:  # name the user's files, not the copies that were loaded
            raise LoadError(error.message.replace(str(root), str(packed.root)), error.details) from None


async def _push(hub: Hub, packed: Packed, request: PushRequest, force: bool, release: bool) -> Pushed:
    from aenv.project import publish

    total = sum((await publish.missing(hub, packed)).values())
    with ProgressBar("sending", total) as progress:
        pushed = await publish.publish(hub, packed, request, force=force, progress=progress)
    if request.public not in (None, pushed.version.public):  # only the visibility changed
        await hub.set_public(packed.bundle.name, bool(request.public))
    if release:
        version = await hub.release(packed.bundle.name, packed.bundle.version)
        return pushed.model_copy(update={"version": version})
    return pushed


async def _is_published(hub: Hub, packed: Packed, force: bool) -> bool:
    """Return whether the hub has the version with this content.

    Raises:
        Conflict: it has the version with other content, and ``force`` is not set.
    """
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


def _dry_run_summary(facts: dict[str, Any]) -> str:
    title = click.style(f"{facts['name']}@{facts['version']}", bold=True)
    outcomes = {
        "created": "would be new",
        "unchanged": "is there already, with the same content",
        "conflict": "is there already, with other content",
    }
    outcome = f"{outcomes[facts['outcome']]} in the hub at {facts['hub']}"
    head = f"{title} {outcome}; {facts['blobs']} blobs of {size(facts['bytes'])} would be sent"
    return "\n".join([head, *(f"  {path}" for path in facts["files"])])


def _summary(pushed: Pushed, where: str) -> str:
    version = pushed.version
    title = click.style(f"{version.name}@{version.version}", bold=True)
    outcomes = {"created": "published", "unchanged": "was there already", "replaced": "replaced"}
    lines = [
        f"{title} {outcomes[pushed.outcome]}  {size(version.size)}, {version.status}",
        f"  hub     {where}",
        f"  digest  {version.digest}",
    ]
    if version.tools:
        lines.append(f"  tools   {', '.join(version.tools)}")
    return "\n".join(lines)
