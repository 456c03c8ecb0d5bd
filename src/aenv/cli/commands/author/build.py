"""``aenv build``: build a project's bundle, and its image where there is a builder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aenv.cli.global_options import GlobalOptions
from aenv.cli.options import work_dir_option
from aenv.cli.output import Output, note, output_option, size

if TYPE_CHECKING:
    from aenv.project.builder import BuildResult


@click.command(name="build")
@work_dir_option
@click.option("-n", "--image-name", help="Name of the image.  [default: buildConfig.image_name, then the name]")
@click.option("-t", "--image-tag", multiple=True, help="Tag of the image; may be repeated.  [default: the version]")
@click.option("-r", "--registry", help="Registry to push to.  [default: the setting build_config.registry.host]")
@click.option(
    "-s", "--namespace", help="Namespace in the registry.  [default: the setting build_config.registry.namespace]"
)
@click.option("-p", "--platform", multiple=True, help="Build for this platform, like linux/amd64; may be repeated.")
@click.option("-f", "--dockerfile", help="Dockerfile to build.  [default: buildConfig.dockerfile]")
@click.option("-c", "--context", help="Build context.  [default: buildConfig.context]")
@click.option("--push/--no-push", default=False, help="Push the image to its registry.  [default: no]")
@click.option(
    "--image/--no-image",
    "want_image",
    default=None,
    help="Require an image, or build none.  [default: build one where there is a builder]",
)
@click.option("--no-lock", is_flag=True, help="Do not lock the packages of requirements.txt.")
@click.option("--upgrade", is_flag=True, help="Lock the newest versions again.")
@output_option
@click.pass_obj
def command(
    global_options: GlobalOptions,
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
    """Build a project's bundle: its files and locked requirements. The same files give the same bytes.

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
        if global_options.verbose:
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
