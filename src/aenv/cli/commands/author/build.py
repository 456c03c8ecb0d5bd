"""``aenv build``: a bundle of a project, and its image where there is a builder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aenv.cli.options import work_dir_option
from aenv.cli.output import Output, note, output_option, size
from aenv.cli.session import Session

if TYPE_CHECKING:
    from aenv.project.builder import BuildResult


@click.command(name="build")
@work_dir_option
@click.option("-n", "--image-name", help="The image's name.  [default: buildConfig.image_name, then the name]")
@click.option("-t", "--image-tag", multiple=True, help="The image's tag; several give several.  [default: the version]")
@click.option("-r", "--registry", help="The registry.  [default: the setting build_config.registry.host]")
@click.option("-s", "--namespace", help="The namespace there.  [default: the setting build_config.registry.namespace]")
@click.option("-p", "--platform", multiple=True, help="Build for this platform, like linux/amd64; several are allowed.")
@click.option("-f", "--dockerfile", help="The Dockerfile.  [default: buildConfig.dockerfile]")
@click.option("-c", "--context", help="The folder that the builder gets.  [default: buildConfig.context]")
@click.option("--push/--no-push", default=False, help="Push the image to its registry.  [default: no]")
@click.option(
    "--image/--no-image",
    "want_image",
    default=None,
    help="Fail without an image, or make none.  [default: make one where there is a builder]",
)
@click.option("--no-lock", is_flag=True, help="Do not lock the packages of requirements.txt.")
@click.option("--upgrade", is_flag=True, help="Lock the newest versions again.")
@output_option
@click.pass_obj
def command(
    session: Session,
    /,
    work_dir: Path,
    image_name: str | None,
    image_tag: tuple[str, ...],
    registry: str | None,
    namespace: str | None,
    platform: tuple[str, ...],
    dockerfile: str | None,
    context: str | None,
    push: bool,
    want_image: bool | None,
    no_lock: bool,
    upgrade: bool,
    output: Output,
) -> None:
    """Make a bundle of a project: its files and locked requirements, the same bytes from the same files.

    Where Docker, Podman or Buildah works, its image is built too, and written into config.json.
    """
    from aenv import config
    from aenv.project.builder import build
    from aenv.project.image_build import ImageOptions

    platforms = tuple(each for given in platform for each in given.split(",") if each)
    options = ImageOptions(image_name, image_tag, registry, namespace, platforms, dockerfile, push, context)
    wanted = True if want_image is None and options.given else want_image
    settings = config.load().build_config
    built = build(work_dir, options, settings, want_image=wanted, locked=not no_lock, upgrade=upgrade, say=note)
    for warning in built.packed.warnings:
        note(f"Warning: {warning}")
    if built.no_image:
        first, *rest = built.no_image.splitlines()
        note(f"No image was built: {first}")
        if session.verbose:
            note("\n".join(rest))
    output.show(_facts(built), lambda: _tell(built))


def _facts(built: BuildResult) -> dict[str, Any]:
    bundle = built.packed.bundle
    return {
        "name": bundle.name,
        "version": bundle.version,
        "digest": bundle.digest(),
        "files": len(bundle.files),
        "size": bundle.size,
        "path": str(built.file),
        "images": list(built.images),
    }


def _tell(built: BuildResult) -> str:
    bundle = built.packed.bundle
    title = click.style(f"{bundle.name}@{bundle.version}", bold=True)
    lines = [
        f"{title}  {len(bundle.files) + 1} files, {size(bundle.size)}",
        f"  bundle  {built.file}",
        f"  digest  {bundle.digest()}",
    ]
    return "\n".join([*lines, *(f"  image   {each}" for each in built.images)])
