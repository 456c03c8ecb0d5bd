"""A platform whose instances are containers, used through the SDK."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aenv.engines.docker.docker_api import DockerApi
from tests.conftest import run
from tests.docker import image
from tests.platform.conftest import publish
from tests.platform.parts import serving

pytestmark = pytest.mark.long


@pytest.fixture
def data() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="aenv-d-", dir="/tmp"))
    try:
        asyncio.run(publish(folder))
        yield folder
    finally:
        for path in folder.rglob("*"):  # bundles in a cache are read only
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)
        shutil.rmtree(folder)


def test_a_user_creates_calls_and_releases_an_instance(
    container_socket: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{container_socket}")
    monkeypatch.setenv("AENV_DOCKER_IMAGE", image.NAME)

    async def containers() -> list[str]:
        api = DockerApi(container_socket)
        try:
            return [each["Labels"]["aenv.name"] for each in await api.containers(**{"aenv.engine": ""})]
        finally:
            api.close()

    with serving(data, "--engine", "docker") as platform:

        async def work() -> None:
            async with platform.environment(token=platform.first_token) as env:
                assert (await env.call_tool("increment", {})).data == 1
                assert (await env.call_tool("increment", {})).data == 2
                assert await containers() == ["counter"]
            assert await containers() == []

        run(work())
