"""The Docker engine keeps the contract of every engine, on a real container engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aenv.engines.base import Engine
from aenv.testing.contracts import EngineContract

pytestmark = pytest.mark.long


class TestDocker(EngineContract):
    @pytest.fixture
    def engine(self, engine: Callable[[], Engine]) -> Callable[[], Engine]:
        return engine
