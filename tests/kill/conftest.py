from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.isolation.host import Platform, own_platform, start_shared_threads


@pytest.fixture(scope="session", autouse=True)
def _blocking_calls() -> None:
    start_shared_threads()


@pytest.fixture
def platform(sandboxes: None, _no_settings_from_outside: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    """A local platform of this test's own; nothing of it may be left in the end."""
    with own_platform() as started:
        monkeypatch.delenv("AENV_SYSTEM_URL", raising=False)
        for name, value in started.variables.items():
            monkeypatch.setenv(name, value)
        yield started
