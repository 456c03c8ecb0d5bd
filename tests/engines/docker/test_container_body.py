"""Requests for containers, as the Docker engine sends them, and what it makes of answers."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from aenv.engines.base import SandboxSpec
from aenv.engines.docker.container_body import ContainerPlacement, container_body
from aenv.engines.docker.container_output import output_text
from aenv.engines.docker.docker_settings import DockerSettings
from aenv.engines.docker.project_upload import project_tar
from aenv.errors import ConfigError
from aenv.isolation.limits.cgroups import Limits
from aenv.isolation.network.policy import Network


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "private").mkdir()
    (tmp_path / "src" / "env.py").write_text("x = 1\n")
    (tmp_path / "private" / "answer").write_text("42")
    (tmp_path / "linked.txt").hardlink_to(tmp_path / "src" / "env.py")
    return tmp_path


def test_a_project_runs_on_the_base_image_without_a_network(project: Path) -> None:
    limits = Limits(memory=1 << 30, cpus=0.5, processes=64, open_files=1024)
    spec = SandboxSpec(
        "game@1.0.0", project, project / "src", {"A": "1", "AENV_OWNER": "ann"}, ["--fast"], limits, ttl="5m",
        labels={"run": "7"},
    )  # fmt: skip
    placement = ContainerPlacement("e1", "12:3", base_image="base:1", user_processes=4096, sockets=Path("/run/x"))
    assert container_body(spec, "secret", placement) == {
        "Image": "base:1",
        "Env": ["HOME=/tmp", "PYTHONUNBUFFERED=1", "A=1", "AENV_OWNER=ann", "AENV_TOKEN=secret"],
        "User": "10001:10001",
        "Labels": {
            "aenv.engine": "e1",
            "aenv.server": "12:3",
            "aenv.name": "game",
            "aenv.version": "1.0.0",
            "aenv.owner": "ann",
            "aenv.ttl": "5m",
            "aenv.network": "loopback",
            "aenv.user.run": "7",
        },
        "StopTimeout": 2,
        "AttachStdin": False,
        "OpenStdin": False,
        "Tty": False,
        "Entrypoint": ["python3"],
        "Cmd": [
            "-m", "aenv.main", "/app/src", "--uds", "/run/aenv/s", "--name", "game@1.0.0", "--grace", "1",
            "--snapshot", "/.project", "--withheld", "/.withheld/private", "--", "--fast",
        ],
        "WorkingDir": "/app",
        "HostConfig": {
            "NetworkMode": "none",
            "Memory": 1 << 30,
            "MemorySwap": 1 << 30,
            "NanoCpus": 500_000_000,
            "PidsLimit": 64,
            "Ulimits": [
                {"Name": "nofile", "Soft": 1024, "Hard": 1024},
                {"Name": "core", "Soft": 0, "Hard": 0},
                {"Name": "nproc", "Soft": 4096, "Hard": 4096},
            ],
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "IpcMode": "private",
            "Privileged": False,
            "Init": False,
            "RestartPolicy": {"Name": "no"},
            "Binds": ["/run/x:/run/aenv:rw"],
        },
    }  # fmt: skip


def test_an_image_keeps_its_command_and_gets_no_folder_of_the_host(project: Path) -> None:
    spec = SandboxSpec("game@1", project, project, image="game:1", network=Network("host"), gpus=2)
    body = container_body(spec, "secret", ContainerPlacement("e1", "12:3", network="bridge", runtime="runsc"))
    assert body["Image"] == "game:1"
    assert not {"Entrypoint", "Cmd", "WorkingDir"} & body.keys()
    assert "AENV_HOST=0.0.0.0" in body["Env"]
    host = body["HostConfig"]
    assert (host["NetworkMode"], host["Runtime"], "Binds" in host) == ("bridge", "runsc", False)
    assert host["DeviceRequests"] == [{"Driver": "nvidia", "Count": 2, "Capabilities": [["gpu"]]}]


def test_the_copy_to_import_from_belongs_to_root_and_has_no_private_files(project: Path) -> None:
    data = project_tar(SandboxSpec("game@1", project, project), (10001, 10001))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        owners = {member.name: (member.uid, member.isreg() or member.isdir()) for member in archive}
    assert owners == {
        "app": (10001, True),
        "app/linked.txt": (10001, True),
        "app/src": (10001, True),
        "app/src/env.py": (10001, True),
        ".project": (0, True),
        ".project/linked.txt": (0, True),
        ".project/src": (0, True),
        ".project/src/env.py": (0, True),
        ".withheld": (10001, True),
        ".withheld/private": (10001, True),
        ".withheld/private/answer": (10001, True),
    }


def test_output_is_read_frame_by_frame_and_a_cut_frame_does_no_harm() -> None:
    frames = b"\x01\0\0\0\0\0\0\x03one\x02\0\0\0\0\0\0\x04 two\x01\0\0\0\0\0\0\x09 th"
    assert output_text(frames) == "one two th"


def test_a_daemon_on_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://build.example.com:2375")
    with pytest.raises(ConfigError, match="on this machine only"):
        DockerSettings.from_environment()
    monkeypatch.setenv("DOCKER_HOST", "unix:///tmp/mine.sock")
    assert DockerSettings.from_environment().socket == "/tmp/mine.sock"
