from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aenv.client.platform_client import ApiClient
from aenv.rollout import EpisodeResult, Rollout, rollout
from aenv.trajectory import TrajectoryStore
from tests.conftest import run
from tests.isolation.host import Platform, own_platform, start_shared_threads

SHOP = str(Path(__file__).parent / "shop")


@pytest.fixture(scope="session", autouse=True)
def _blocking_calls() -> None:
    start_shared_threads()


@pytest.fixture(scope="module")
def _platform_of_module(sandboxes: None) -> Iterator[Platform]:
    with own_platform() as started:
        yield started


@pytest.fixture
def platform(
    _platform_of_module: Platform, _no_settings_from_outside: None, monkeypatch: pytest.MonkeyPatch
) -> Platform:
    """A local platform for the tests of a module; nothing of it may be left in the end."""
    monkeypatch.delenv("AENV_SYSTEM_URL", raising=False)
    for name, value in _platform_of_module.variables.items():
        monkeypatch.setenv(name, value)
    return _platform_of_module


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TrajectoryStore]:
    with TrajectoryStore.open(tmp_path / "store") as opened:
        yield opened


def results_of(made: Rollout) -> list[EpisodeResult]:
    """Run all episodes of a rollout."""

    async def collect() -> list[EpisodeResult]:
        return [result async for result in made.results()]

    found: list[EpisodeResult] = run(collect())
    return found


def shopping(agent: Any, store: TrajectoryStore, **options: Any) -> list[EpisodeResult]:
    """Run an agent in the shop, on one task unless others are given."""
    task = {"id": "one", "prompt": "Buy 1 apple.", "reward": {"arguments": {"wanted": {"apple": 1}}}}
    given = {"tasks": [task], "concurrency": 4, "retries": 0, **options}
    return results_of(rollout(SHOP, agent=agent, store=store, **given))


def instances_in_use(platform: Platform) -> list[str]:
    """Return the instances that a client has, by the platform's own account."""

    async def ask() -> list[str]:
        async with ApiClient(platform.paths.url, timeout=30.0, max_retries=0) as api:
            return [instance.id for instance in await api.list_env_instances()]

    found: list[str] = run(ask())
    return found
