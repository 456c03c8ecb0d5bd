"""Fixtures for hubs on SQLite and on Redis, and for hub servers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.hub.parts import Served, serving
from tests.storage.valkey import Valkey, started

numbers = itertools.count()


@pytest.fixture(autouse=True)
def _own_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AENV_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with started(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture(params=["sqlite", "redis"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a store that only this test uses."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/hub/hub.db"
    server: Valkey = request.getfixturevalue("valkey")
    return server.url(prefix=f"hub{next(numbers)}:")


@pytest.fixture
def serve(store_url: str, tmp_path: Path) -> Callable[..., AbstractContextManager[Served]]:
    """Return a function that starts a server on the store; several servers may share it."""

    def start(*options: str) -> AbstractContextManager[Served]:
        return serving(store_url, tmp_path / "blobs", tmp_path, *options)

    return start
