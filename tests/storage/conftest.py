"""Real servers for the store in Redis: Valkey out of a wheel, and the machine's own redis-server where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.valkey import Valkey, servers


@pytest.fixture(scope="session", params=servers())
def redis_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    server = Valkey(Path(request.param), tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()
