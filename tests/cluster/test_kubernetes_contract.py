"""The Kubernetes engine keeps the contract of every engine, on a real cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aenv.engines.base import Engine, SandboxSpec
from aenv.testing.contracts import EngineContract
from tests.cluster.conftest import SMALL

pytestmark = pytest.mark.long


class TestKubernetes(EngineContract):
    @pytest.fixture
    def engine(self, engine: Callable[[], Engine]) -> Callable[[], Engine]:
        return engine

    def _spec(self, folder: Path, **more: Any) -> SandboxSpec:
        return super()._spec(folder, requests=SMALL, **more)
