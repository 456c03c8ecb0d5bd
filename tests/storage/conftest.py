"""Servers for the Redis store: Valkey from a wheel, and the machine's redis-server if installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.storage.valkey import Valkey, servers, started


@pytest.fixture(scope="session", params=servers())
def redis_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with started(tmp_path_factory.mktemp("redis"), request.param) as server:
        yield server
