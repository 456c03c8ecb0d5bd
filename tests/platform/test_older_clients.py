"""The SDK and the command of aenvironment 0.1.7, unmodified, from its package, against ``aenv serve``."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import fetch
from tests.platform.parts import Served, serving

HERE = Path(__file__).parent
PLANES = ("--port", "8080", "--data-port", "8081")
"""The ports are fixed in these clients. So each server has an address of its own: all of 127.0.0.0/8 is local."""


@pytest.fixture
def platform(data: Path) -> Iterator[Served]:
    digits = secrets.token_bytes(2)
    address = f"127.{64 + digits[0] % 128}.{digits[1]}.7"
    with serving(data, "--host", address, *PLANES, one_port=False) as served:
        yield served


def _run(platform: Served, token: str, *command: str | Path) -> str:
    """Return the output of a program for a user with a new home and the two variables set."""
    variables = {
        "PATH": os.environ["PATH"], "HOME": str(platform.data), "COLUMNS": "200", "NO_COLOR": "1",
        "AENV_SYSTEM_URL": platform.url.rpartition(":")[0], "AENV_API_KEY": token,
    }  # fmt: skip
    done = subprocess.run(
        command, env=variables, cwd=platform.data, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_the_older_sdk_and_its_command_work_unchanged(earlier: Path, platform: Served) -> None:
    token = platform.token("ann")
    seen = json.loads(_run(platform, token, earlier / "python", HERE / "older" / "use.py").splitlines()[-1])
    name = seen["info"].pop("instance_id")
    health = seen.pop("health")
    assert (health["success"], health["data"]["status"]) == (True, "success")
    assert {"counter@1.2.0/echo", "counter@1.2.0/increment"} <= set(seen.pop("tools"))
    assert seen == {
        "version": "0.1.7",
        "tool": [False, "1"],
        "variable": "1",
        "function": 42,
        "reward": 1.0,
        "info": {"status": "Running"},
    }
    auth = {"authorization": f"Bearer {token}"}
    assert fetch(platform.url, f"/env-instance/{name}", headers=auth)[0] == 404, "its release was not a delete"

    _run(platform, token, earlier / "aenv", "config", "set", "hub_config.api_key", token)
    _run(platform, token, earlier / "aenv", "instance", "create", "counter@1.2.0", "--keep-alive", "--owner", "ann")
    (made,) = fetch(platform.url, "/env-instance/*/list", headers=auth)[1]["data"]
    assert made["owner"] == "ann"
    assert made["id"] in _run(platform, token, earlier / "aenv", "instance", "list", "--name", "counter")
    assert '"status": "Running"' in _run(platform, token, earlier / "aenv", "instance", "get", made["id"], "-o", "json")
    _run(platform, token, earlier / "aenv", "instance", "delete", made["id"], "--yes")
    assert fetch(platform.url, "/env-instance/*/list", headers=auth)[1]["data"] == []
