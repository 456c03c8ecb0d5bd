"""``aenv cluster`` on a real cluster."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aenv.engines.base import Engine, SandboxSpec
from tests.cluster.conftest import IMAGE, NAMESPACE, SMALL

pytestmark = pytest.mark.long


def aenv(*arguments: str, **variables: str) -> tuple[int, Any]:
    settings = {"AENV_KUBERNETES_NAMESPACE": NAMESPACE, "AENV_KUBERNETES_IMAGE": IMAGE, **variables}
    done = subprocess.run(
        [sys.executable, "-m", "aenv.cli", "cluster", *arguments, "--output", "json"],
        env={**os.environ, **settings}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout)


def test_the_doctor_finds_the_connection_and_all_rights() -> None:
    code, found = aenv("doctor")
    assert (code, found["works"]) == (0, True)
    assert {each["what"]: each["state"] for each in found["findings"]} == {
        "connection": "ok", "rights": "ok", "base image": "ok",
    }  # fmt: skip


def test_the_status_shows_an_engine_and_the_phases_of_its_pods(engine: Callable[[], Engine], folder: Path) -> None:
    project = folder / "project"
    project.mkdir()
    (project / "env.py").write_text("from aenv import register_tool\n@register_tool\ndef hello() -> int: return 1\n")

    async def main() -> None:
        made = engine()
        try:
            await made.start(SandboxSpec("seen@1.0.0", project, project, requests=SMALL))
            code, found = await asyncio.to_thread(aenv, "status")
            assert code == 0
            assert [each["pods"] for each in found] == [{"Running": 1}]
            assert found[0]["renewed"].startswith("20")
        finally:
            await made.close()

    asyncio.run(asyncio.wait_for(main(), 100))
