"""``aenv instance`` against a platform."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.platform.parts import Served

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def aenv(platform: Served, tokens: Callable[..., str], tmp_path: Path) -> Run:
    env = {**os.environ, "HOME": str(tmp_path), "AENV_SYSTEM_URL": platform.url, "AENV_API_KEY": tokens("ann")}

    def call(*args: str, code: int = 0, stdin: str = "") -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "aenv.cli", *args],
            env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False, input=stdin,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return call


@pytest.mark.long
def test_the_instance_commands_cover_the_life_of_an_instance(aenv: Run, tmp_path: Path) -> None:
    made: dict[str, Any] = json.loads(
        aenv(
            "instance", "create", "counter@1.2.0", "--keep-alive", "-t", "1h", "-e", "A=b=c", "-l", "experiment=e1",
            "--owner", "me", "--cpu", "500m", "--memory", "512Mi", "-o", "json",
        ).stdout
    )  # fmt: skip
    name = made["instance_id"]
    assert (made["environment"], made["status"], made["version"]) == ("counter@1.2.0", "Running", "1.2.0")
    assert made["digest"].startswith("sha256:")
    listed = json.loads(aenv("instance", "list", "-n", "counter", "--version", "1.2.0", "-o", "json").stdout)
    assert [each["id"] for each in listed] == [name]
    assert aenv("instances", "--owner", "me").stdout.splitlines()[1].split()[:5] == [
        name, "counter", "1.2.0", "me", "Running",
    ]  # fmt: skip
    assert aenv("instance", "list", "-l", "experiment=e2").stdout == "no instances\n"
    assert "Label        experiment=e1" in aenv("instance", "get", name).stdout
    assert "running" in aenv("instance", "get", name).stdout
    assert json.loads(aenv("instance", "get", "counter", "-o", "json").stdout)["id"] == name

    assert aenv("instance", "exec", name, "echo $A; exit 7", code=7).stdout == "b=c\n"
    assert aenv("instance", "exec", name, "--", "echo", "-n", "x").stdout == "x"
    (tmp_path / "file").write_bytes(bytes(range(256)))
    aenv("instance", "cp", "file", f"{name}:/tmp/there")
    aenv("instance", "cp", f"{name}:/tmp/there", "back")
    assert (tmp_path / "back").read_bytes() == bytes(range(256))
    (tmp_path / "folder" / "sub").mkdir(parents=True)
    (tmp_path / "folder" / "sub" / "f").write_text("deep")
    aenv("instance", "cp", "folder", f"{name}:/tmp/copied")
    aenv("instance", "cp", f"{name}:/tmp/copied", "again")
    assert (tmp_path / "again" / "sub" / "f").read_text() == "deep"
    assert "nothing does not exist" in aenv("instance", "cp", "nothing", f"{name}:/tmp/x", code=2).stderr
    assert json.loads(aenv("instance", "renew", name, "--ttl", "2h", "-o", "json").stdout)["ttl"] == "2h"
    assert aenv("instance", "renew", "counter", "--ttl", "3h").stdout.startswith(f"{name} lives until ")
    assert "write it like 30m" in aenv("instance", "renew", "counter", "--ttl", "soon", code=3).stderr
    assert aenv("instance", "logs", "counter@1.2.0", "--tail", "5").stdout == ""

    assert f"End instance {name}?" in aenv("instance", "delete", "counter", code=130, stdin="n\n").stderr
    assert aenv("instance", "delete", "-y", name).stdout == f"deleted {name}\n"
    assert "there is no instance" in aenv("instance", "delete", "-y", name, code=1).stderr
    assert "Reason       deleted" in aenv("instance", "get", name).stdout
    assert aenv("instance", "logs", "-f", name).stdout == ""
    missing = aenv("instance", "get", "nosuch", code=1).stderr
    assert "there is no instance 'nosuch'" in missing
    assert "List them: aenv instance list" in missing
    assert "no instance" in aenv("instance", "logs", "counter-00000000", code=1).stderr


def test_an_instance_without_keep_alive_ends_with_the_command(aenv: Run) -> None:
    done = aenv("instance", "create", "counter")
    assert "Instance ID" in done.stdout
    assert "Version      1.2.0\nDigest       sha256:" in done.stdout
    assert "deleted again" in done.stderr
    assert json.loads(aenv("instance", "info", "counter", "-o", "json").stdout)["status"] == "Running"
    assert json.loads(aenv("instances", "-o", "json").stdout) == []


def test_wrong_arguments_are_reported(aenv: Run) -> None:
    assert "KEY=VALUE" in aenv("instance", "create", "counter", "-e", "A", code=2).stderr
    assert "write it like 2Gi" in aenv("instance", "create", "counter", "--memory", "2 gigs", code=2).stderr
    assert "needs --name" in aenv("instance", "list", "--version", "1", code=2).stderr
    assert "ID:/path" in aenv("instance", "cp", "a", "b", code=2).stderr
    assert "the token is wrong" in aenv("instance", "list", "--api-key", "aenv_0_0", code=1).stderr
    assert "no-such" in aenv("instance", "create", "no-such", code=1).stderr
