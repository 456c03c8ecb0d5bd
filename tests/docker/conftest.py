"""Tests with a real container engine: Podman's service, started here with a storage of its own; or ``DOCKER_HOST``."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aenv.engines.base import Engine
from aenv.engines.docker.container_engine import DockerEngine
from aenv.engines.docker.docker_settings import DockerSettings
from tests.docker import image
from tests.waiting import wait_while

CONFIGURATION = """\
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""
INSTALL = "needs Podman: as root, apt-get install podman runc"


@pytest.fixture(scope="session")
def container_socket() -> Iterator[str]:
    """A daemon with the base image in it; the path of its socket."""
    if os.geteuid() != 0 or shutil.which("podman") is None or shutil.which("runc") is None:
        pytest.skip(INSTALL)
    with tempfile.TemporaryDirectory(prefix="aenv-d-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "containers.conf").write_text(CONFIGURATION)
        variables = {**os.environ, "CONTAINERS_CONF": str(folder / "containers.conf")}
        podman = ["podman", "--root", str(folder / "storage"), "--runroot", str(folder / "run")]
        socket = folder / "podman.sock"
        service = subprocess.Popen(
            [*podman, "system", "service", "--time=0", f"unix://{socket}"],
            cwd=folder,  # conmon writes a file ``oom`` where it was started
            env=variables,
            stderr=subprocess.DEVNULL,
        )
        try:
            image.write(folder / "base.tar")
            site = f"/{image.SITE}"
            subprocess.run(
                [*podman, "import", "--change", f"ENV PYTHONPATH={site}", str(folder / "base.tar"), image.NAME],
                env=variables, check=True, capture_output=True, timeout=120,
            )  # fmt: skip
            (folder / "base.tar").unlink()
            wait_while(lambda: not socket.exists() and "it does not listen", "podman does not start")
            yield str(socket)
        finally:
            subprocess.run([*podman, "system", "reset", "--force"], env=variables, capture_output=True, timeout=120)
            service.terminate()
            service.wait(30)


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="aenv-d-", dir="/tmp"))
    yield made
    left = list((made / "engine").rglob("*"))
    shutil.rmtree(made)
    assert left == []


@pytest.fixture
def engine(folder: Path, container_socket: str) -> Callable[[], Engine]:
    return lambda: DockerEngine(folder / "engine", DockerSettings(socket=container_socket, image=image.NAME))
