"""Build a project: lock its requirements, build its image if there is a builder, and write its bundle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aenv.config import UserBuildConfig as BuildSettings
from aenv.errors import BuildFailed, ConfigError
from aenv.project import image_build, manifest
from aenv.project.bundles import archive
from aenv.project.bundles.packing import Packed, pack
from aenv.project.image_build import ImageOptions
from aenv.project.lock import lock_if_possible

FOLDER = "dist"


@dataclass(frozen=True)
class BuildResult:
    """Output of a build."""

    packed: Packed
    file: Path
    images: tuple[str, ...]
    no_image: str | None
    """Reason why no image was built; None if one was built or none was requested."""


def build(
    root: Path,
    options: ImageOptions,
    settings: BuildSettings,
    *,
    want_image: bool | None,
    locked: bool = True,
    upgrade: bool = False,
    say: Callable[[str], None],
) -> BuildResult:
    """Build the project in the folder ``root``.

    ``want_image=None`` builds an image if possible: a failing image builder does not fail the build then.

    Raises:
        ConfigError: the project is invalid.
        BuildFailed: an image was requested and could not be built.
    """
    root = root.absolute()
    loaded = manifest.load(root)
    if locked:
        lock_if_possible(root, upgrade=upgrade, say=say)
    images: tuple[str, ...] = ()
    problem: str | None = None
    if want_image is not False:
        try:
            images = _image(loaded, options, settings, say)
        except (BuildFailed, ConfigError) as error:
            if want_image:
                raise
            problem = error.message
    packed = pack(root)
    file = root / FOLDER / archive.file_name(packed.bundle)
    archive.write(packed, file)
    return BuildResult(packed, file, images, problem)


def _image(
    loaded: manifest.Loaded, options: ImageOptions, settings: BuildSettings, say: Callable[[str], None]
) -> tuple[str, ...]:
    builder = image_build.find_builder(settings)
    if isinstance(builder, str):
        raise BuildFailed(builder, {"hint": "Install Docker, Podman or Buildah, or build with --no-image."})
    what = image_build.plan(loaded, options, settings.registry)
    say(f"building {what.references[0]} with {builder.kind}")
    image_build.build(builder, what, settings.registry, push=options.push, say=say)
    image_build.record(loaded, what)
    return what.references
