"""Fallback to Docker, where installed, for images that cannot be built or fetched without it.

This is the only module that runs the docker command. An image is exported from Docker as a layer for boxes, with owners
and modes. So tasks run and are graded in a box, whatever built their image, and leave nothing in Docker.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aenv.errors import BuildFailed
from aenv.images import container, layered_images
from aenv.images.layered_images import BoxImage, digest
from aenv.isolation.files.scratch_folders import scratch_folder
from aenv.subprocesses import run_async

PROGRAMS = ("docker", "podman")
"""Programs to try, in this order; they accept the same arguments."""
PROBE_SECONDS = 15.0
"""Seconds for ``docker info`` to answer."""
MAX_OUTPUT = 3000
NO_USERS = (
    "this user has no range of subordinate user ids; add one: sudo apt-get install uidmap; "
    "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER"
)
_CONFIG_FILE = "image.json"


async def find() -> Docker | str:
    """Return a working Docker or Podman, or the reason why there is none."""
    reasons = []
    for name in PROGRAMS:
        program = shutil.which(name)
        if program is None:
            continue
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                code, output = await _run(program, "info")
        except TimeoutError:
            code, output = 1, "it does not answer"
        if code == 0:
            return Docker(program)
        reasons.append(f"{name} does not work here ({(output.strip().splitlines() or ['?'])[-1][:200]})")
    return "; ".join(reasons) or "Docker is not installed"


def cached_build(key: str) -> BoxImage | None:
    """Return the image that `Docker.build` has built under this key before, if any."""
    layer = layered_images.cache().use(_layer_path(key).name)
    return None if layer is None else _image(layer, key)


def any_built() -> bool:
    """Return True if any image of Docker has been extracted here."""
    return any(layered_images.layer_folder("").glob("docker-*"))


@dataclass(frozen=True, slots=True)
class Docker:
    """A working Docker or Podman command."""

    program: str

    async def has(self, name: str) -> bool:
        """Return True if Docker has an image of this name, or can pull it."""
        return await self._succeeds("image", "inspect", name) or await self._succeeds("pull", "--quiet", name)

    async def image(self, name: str) -> BoxImage | None:
        """Return an image that Docker has or can pull, as layers for boxes; None without one."""
        if not await self.has(name):
            return None
        found = await self._inspect(name)
        return await self._extract_layer(digest("image", found["Id"]), found["Id"])

    async def build(self, dockerfile: Path, context: Path, arguments: Mapping[str, str], key: str) -> BoxImage:
        """Build a Dockerfile and extract its image, which is then removed from Docker.

        Raises:
            BuildFailed: with the end of the output.
        """
        build_args = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
        with scratch_folder("docker") as scratch:
            file = Path(scratch, "id")
            words = [
                "build",
                "--force-rm",
                "--iidfile",
                str(file),
                "--file",
                str(dockerfile),
                *build_args,
                str(context),
            ]
            await self._run_checked(*words)
            image_id = file.read_text().strip()
        try:
            return await self._extract_layer(key, image_id)
        finally:
            await self._succeeds("rmi", image_id)  # the image stays if it has a name

    async def save(self, name: str, target: Path) -> None:
        """Save an image to a file that `aenv base add` accepts.

        Raises:
            BuildFailed: with the end of the output.
        """
        await self._run_checked("save", name, "--output", str(target))

    async def _extract_layer(self, key: str, image: str) -> BoxImage:
        async def make(state: Path) -> None:
            if not container.has_user_range():
                raise BuildFailed(f"an image from Docker cannot be used here: {NO_USERS}")
            (state / _CONFIG_FILE).write_text(json.dumps((await self._inspect(image))["Config"]))
            scratch = layered_images.new_state(state / "scratch")
            packed = state / "root.tar"
            try:
                async with self._container(image) as made:
                    await self._run_checked("export", made, "--output", str(packed))
                async with layered_images.box(layered_images.host_image(), scratch) as box:
                    await box.unpack(lambda target: _copy_members(packed, target), "/made")
                (state / "upper").rmdir()
                (scratch / "upper" / "made").rename(state / "upper")
            finally:
                packed.unlink(missing_ok=True)
                await layered_images.remove(scratch)

        layer = _layer_path(key)
        await layered_images.ensure_layer(layer.name, make)
        return _image(layer, key)

    @asynccontextmanager
    async def _container(self, image: str) -> AsyncIterator[str]:
        """Create a container without starting it: ``docker export`` exports files of containers only."""
        output = await self._run_checked("create", "--network", "none", image, "/bin/true")
        name = output.strip().splitlines()[-1]
        try:
            yield name
        finally:
            await self._succeeds("rm", "--force", name)

    async def _inspect(self, image: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self._run_checked("image", "inspect", image))[0]
        return found

    async def _run_checked(self, *words: str) -> str:
        code, output = await _run(self.program, *words)
        if code:
            raise BuildFailed(
                f"{Path(self.program).name} {words[0]} ended with exit code {code}:\n{output[-MAX_OUTPUT:]}"
            )
        return output

    async def _succeeds(self, *words: str) -> bool:
        return (await _run(self.program, *words))[0] == 0


def _layer_path(key: str) -> Path:
    return layered_images.folder() / "layers" / f"docker-{key}"


def _image(layer: Path, key: str) -> BoxImage:
    config = json.loads((layer / _CONFIG_FILE).read_text())
    variables = dict(each.split("=", 1) for each in config.get("Env") or [] if "=" in each)
    return BoxImage(
        f"docker-{key}", (str(layer / "upper"),), variables=variables, cwd=config.get("WorkingDir") or "/",
        user=config.get("User") or "", entrypoint=tuple(config.get("Entrypoint") or ()),
        command=tuple(config.get("Cmd") or ()),
    )  # fmt: skip


def _copy_members(source: Path, target: object) -> None:
    """Copy a tar without devices, which an ordinary user may not create; a box has its own."""
    with (
        tarfile.open(source) as exported,
        tarfile.open(fileobj=target, mode="w|") as archive,  # type: ignore[call-overload]
    ):
        for member in exported:
            if not (member.ischr() or member.isblk()):
                archive.addfile(member, exported.extractfile(member) if member.isreg() else None)


async def _run(*command: str) -> tuple[int, str]:
    """Run a command; return its exit code and output."""
    done = await run_async(command, stderr=subprocess.STDOUT, env={**os.environ, "DOCKER_CLI_HINTS": "false"})
    return done.code, done.stdout
