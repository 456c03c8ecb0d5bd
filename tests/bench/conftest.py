"""Fixtures of tests that run benchmarks in sandboxes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.isolation.host import Platform, own_platform, start_shared_threads


@pytest.fixture(scope="module")
def shared_threads() -> None:
    """Start the threads that blocking handles share, so that the leak check does not blame a test for them."""
    start_shared_threads()


@pytest.fixture
def shared_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide a folder for image layers that only tests of benchmarks share."""
    folder = tmp_path_factory.getbasetemp() / "cache-of-boxes"
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))


@pytest.fixture
def platform(_no_settings_from_outside: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    """A local platform of this test's own; nothing of it may be left in the end."""
    with own_platform() as started:
        for name, value in started.variables.items():
            monkeypatch.setenv(name, value)
        yield started
