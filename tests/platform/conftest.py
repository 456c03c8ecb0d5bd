from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aenv.hub.local_hub import LocalHub
from aenv.hub.open_hub import HubLocation, open_catalog
from tests.hub.parts import push
from tests.platform.parts import ENV, Served, serving


async def publish(data: Path, name: str = "counter", content: str = ENV) -> None:
    """Publish an environment in the hub that a platform on this data folder serves."""
    hub = LocalHub(open_catalog(HubLocation.of(data=data)))
    try:
        await push(hub, name, "1.2.0", content, public=True)
    finally:
        await hub.close()


@pytest.fixture
def data(sandboxes: None) -> Iterator[Path]:
    """A data folder with the environment `counter` in its hub. At the end no server has left anything there."""
    folder = Path(tempfile.mkdtemp(prefix="aenv-t-", dir="/tmp"))
    asyncio.run(publish(folder))
    yield folder
    left = list(folder.glob("aenv-serve-*"))
    _remove(folder)
    assert not left


@pytest.fixture(scope="module")
def published(sandboxes: None) -> Iterator[Path]:
    """A data folder for all tests of a module."""
    folder = Path(tempfile.mkdtemp(prefix="aenv-t-", dir="/tmp"))
    try:
        asyncio.run(publish(folder))
        yield folder
    finally:
        _remove(folder)


@pytest.fixture(scope="module")
def platform(published: Path) -> Iterator[Served]:
    """A platform with tokens for all tests of a module."""
    with serving(published) as served:
        yield served


def _remove(folder: Path) -> None:
    """Make a cache removable: bundles in it are read only, and so are their folders."""
    for path in folder.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def tokens(platform: Served) -> Callable[[str], str]:
    """A user's token, created once."""
    made: dict[str, str] = {}

    def token(user: str, role: str = "user") -> str:
        if user not in made:
            made[user] = platform.token(user, role)
        return made[user]

    return token
