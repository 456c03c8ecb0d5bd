"""Builds that fall back to Docker: with a real Docker, where one works, and an image imported here."""

from __future__ import annotations

import asyncio
import io
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aenv.errors import BuildFailed
from aenv.images import docker_cli, layered_images
from aenv.images.dockerfile_build import build
from aenv.images.layered_images import BoxImage
from tests.conftest import run
from tests.tiny import make_root

NAME = "aenv-test/tiny:1"
DOCKERFILE = f"""FROM {NAME}
ONBUILD RUN true
USER root
RUN echo made > /made.txt && chown 1000 /made.txt && chmod 4755 /usr/bin/id
ENV WHERE="in docker"
WORKDIR /work
COPY words.txt .
USER somebody
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[docker_cli.Docker]:
    """A working Docker with one image, made of the host's own programs."""
    found = asyncio.run(docker_cli.find())
    if isinstance(found, str):
        pytest.skip(found)
    programs = ("sh", "bash", "cat", "chmod", "chown", "id", "stat", "true")
    root = make_root(tmp_path_factory.mktemp("image") / "root", programs)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(root, ".")
    command = [found.program, "import", "--change", "ENV OF=image", "-", NAME]
    subprocess.run(command, input=packed.getvalue(), check=True, capture_output=True)
    try:
        tried = subprocess.run([found.program, "run", "--rm", NAME, "true"], capture_output=True, text=True)
        if tried.returncode:
            pytest.skip(f"{found.program} cannot run containers here: {tried.stderr.strip()[-200:]}")
        yield found
    finally:
        subprocess.run([found.program, "rmi", "--force", NAME], check=True, capture_output=True)


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sandboxes: None) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "words.txt").write_text("hello\n")
    return folder


async def output_of(image: BoxImage, state: Path, command: str) -> str:
    async with layered_images.box(image, layered_images.new_state(state)) as box:
        done = await box.exec(["/bin/bash", "-c", command], cwd=image.cwd, user=image.user, merge_stderr=True)
    await layered_images.remove(state)
    return done.output


def kept(engine: docker_cli.Docker) -> set[str]:
    """Return the ids of all images and containers."""
    return containers(engine) | listed(engine, "images")


def containers(engine: docker_cli.Docker) -> set[str]:
    return listed(engine, "ps")


def listed(engine: docker_cli.Docker, what: str) -> set[str]:
    command = [engine.program, what, "--all", "--quiet"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_an_unsupported_step_is_built_by_docker(engine: docker_cli.Docker, context: Path, tmp_path: Path) -> None:
    (context / "Dockerfile").write_text(DOCKERFILE)
    before = kept(engine)

    async def main() -> None:
        image = await build(context / "Dockerfile", context)
        assert image.key.startswith("docker-")
        assert (image.cwd, image.user) == ("/work", "somebody")
        asked = "cat words.txt /made.txt; stat -c '%u %a' /made.txt /usr/bin/id; echo $WHERE $OF; id -u"
        seen = await output_of(image, tmp_path / "state", asked)
        assert seen.splitlines()[:4] == ["hello", "made", "1000 644", "0 4755"]
        assert seen.splitlines()[4] == "in docker image"

    run(main())
    assert kept(engine) == before


def test_a_docker_build_is_cached_until_its_inputs_change(
    engine: docker_cli.Docker, context: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (context / "Dockerfile").write_text(DOCKERFILE)
    first = run(build(context / "Dockerfile", context))
    (context / "words.txt").write_text("other\n")
    second = run(build(context / "Dockerfile", context))
    assert first.key != second.key
    monkeypatch.setattr(docker_cli, "PROGRAMS", ())
    assert run(build(context / "Dockerfile", context)) == second


def test_a_docker_image_can_be_used_in_from(engine: docker_cli.Docker, context: Path, tmp_path: Path) -> None:
    (context / "Dockerfile").write_text(f"FROM {NAME}\nRUN echo made here > /made.txt\n")
    image = run(build(context / "Dockerfile", context))
    assert not image.key.startswith("docker-")
    assert run(output_of(image, tmp_path / "state", "cat /made.txt; echo $OF")) == "made here\nimage\n"


def test_a_failed_docker_build_reports_both_errors(engine: docker_cli.Docker, context: Path) -> None:
    (context / "Dockerfile").write_text(f"FROM {NAME}\nONBUILD RUN true\nRUN exit 7\n")
    before = containers(engine)
    with pytest.raises(BuildFailed) as raised:
        run(build(context / "Dockerfile", context))
    assert "build ended with exit code" in raised.value.message
    assert "Without Docker:" in raised.value.message
    assert "line 2: unsupported instruction ONBUILD" in raised.value.message
    assert containers(engine) == before


def test_a_docker_without_a_daemon_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\necho Cannot connect to the Docker daemon >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(docker_cli.find()) == "docker does not work here (Cannot connect to the Docker daemon)"
