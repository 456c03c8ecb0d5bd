"""``aenv pull``: download an environment's files from the hub, or unpack a bundle file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aenv.cli.hub.hub_options import reference, with_hub
from aenv.cli.output import Output, note, output_option, size
from aenv.cli.progress import ProgressBar

if TYPE_CHECKING:
    from aenv.schema.bundle import Bundle
    from aenv.schema.envhub import Hub
    from aenv.schema.ref import EnvRef


@click.command(name="pull")
@click.argument("name")
@click.argument("directory", type=click.Path(path_type=Path), required=False)
@click.option("-v", "--version", help="Version, if not part of NAME.  [default: the newest]")
@output_option
def command(name: str, directory: Path | None, version: str | None, output: Output) -> None:
    """Download the files of NAME[@VERSION] into DIRECTORY, a new folder; by default one called NAME.

    NAME can also be a file that `aenv build` made. Every byte is checked, and nothing is written elsewhere.
    """
    from aenv.project.project_files import BUNDLE_SUFFIX

    if name.endswith(BUNDLE_SUFFIX):
        bundle, target = asyncio.run(_from_file(Path(name), directory))
    else:
        ref = reference(name, version)
        bundle, target = with_hub(lambda hub: _from_hub(hub, ref, directory))
    result = {
        "name": bundle.name,
        "version": bundle.version,
        "digest": bundle.digest(),
        "files": len(bundle.files),
        "size": bundle.size,
        "path": str(target.absolute()),
    }
    title = click.style(f"{bundle.name}@{bundle.version}", bold=True)
    output.show(result, lambda: f"{title}  {len(bundle.files) + 1} files, {size(bundle.size)}, in {target}")


async def _from_file(path: Path, directory: Path | None) -> tuple[Bundle, Path]:
    from aenv.project.bundles.archive import Archive
    from aenv.project.bundles.unpack import unpack

    with Archive(path) as archive:
        target = directory or Path(archive.bundle.name)
        await unpack(archive.bundle, archive.fetch, target)
        return archive.bundle, target


async def _from_hub(hub: Hub, ref: EnvRef, directory: Path | None) -> tuple[Bundle, Path]:
    from aenv.project.fetch import fetch

    version = await hub.get(ref.name, ref.want)
    for word, reason in (("deprecated", version.deprecated), ("yanked", version.yanked)):
        if reason is not None:
            note(f"Warning: {version.name}@{version.version} is {word}: {reason}")
    target = directory or Path(ref.name)
    with ProgressBar("getting", version.size) as progress:
        return await fetch(hub, version, target, progress), target
