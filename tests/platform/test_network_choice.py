from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from aenv.engines.base import Capabilities
from aenv.errors import UsageError
from aenv.platform.instances.lifecycle import Instances
from aenv.schema.instances import EnvInstanceCreateRequest
from tests.platform.between import OneEngine


@pytest.mark.parametrize("engine_can", [{"loopback"}, {"loopback", "host"}])
def test_an_engine_that_lacks_the_declared_network_is_refused_and_gives_no_wider_one(
    engine_can: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "config.json").write_text(
        json.dumps({"name": "mine", "version": "1.0.0", "deployConfig": {"network": "blackhole"}})
    )
    monkeypatch.setattr(OneEngine, "capabilities", Capabilities(networks=frozenset(engine_can)))  # type: ignore[arg-type]
    instances = Instances(OneEngine("/nowhere"))
    with pytest.raises(UsageError, match="needs the network blackhole, which this platform's engine cannot give"):
        asyncio.run(instances.create(EnvInstanceCreateRequest(envName="mine", source=str(tmp_path))))
