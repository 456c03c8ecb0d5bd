"""The body of a request for an instance's container: a pure function, so that a golden test can cover it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from aenv.engines.base import SandboxSpec
from aenv.engines.project_archive import PRIVATE, has_private
from aenv.isolation.files.rootfs import PROJECT, SNAPSHOT
from aenv.schema import paths

USER = "10001:10001"
"""User and group where root runs the engine; the Dockerfile of ``aenv init`` uses it, too."""
SOCKETS = "/run/aenv"
SOCKET = "s"
"""Name of the runtime's socket in its folder."""
GRACE_SECONDS = 2
ENGINE = "aenv.engine"
SERVER = "aenv.server"
"""Label with the server process that owns the container."""
USER_PREFIX = "aenv.user."
"""Prefix of labels that the caller chose, so that none can take the place of one of ours."""


@dataclass(frozen=True, slots=True)
class ContainerPlacement:
    """Decisions of the engine for one container."""

    engine: str
    server: str
    user: str = USER
    base_image: str = ""
    runtime: str = ""
    network: str = "none"
    user_processes: int = 0
    """Processes of one user, where this machine has a limit: Podman would try to raise it. 0: the daemon's default."""
    sockets: Path | None = None
    """Folder on the host for the runtime's socket. None: the image's own command, which listens at a port."""


def container_body(spec: SandboxSpec, token: str, placement: ContainerPlacement) -> dict[str, Any]:
    """Return the body of ``POST /containers/create``."""
    body: dict[str, Any] = {
        "Image": spec.image or placement.base_image,
        "Env": _variables(spec, token, listens=placement.sockets is None),
        "User": placement.user,
        "Labels": _labels(spec, placement),
        "StopTimeout": GRACE_SECONDS,
        "AttachStdin": False,
        "OpenStdin": False,
        "Tty": False,
        "HostConfig": _host_config(spec, placement),
    }
    if placement.sockets is None:
        return {**body, **({"Cmd": spec.arguments} if spec.arguments else {})}
    code = PurePosixPath(PROJECT) / spec.code.relative_to(spec.project).as_posix()
    command = [
        "python3", "-m", "aenv.main", str(code), "--uds", f"{SOCKETS}/{SOCKET}", "--name", spec.name, "--grace", "1",
        "--snapshot", SNAPSHOT, "--withheld", PRIVATE if has_private(spec) else "", "--", *spec.arguments,
    ]  # fmt: skip
    return {**body, "Entrypoint": command[:1], "Cmd": command[1:], "WorkingDir": PROJECT}


def _variables(spec: SandboxSpec, token: str, *, listens: bool) -> list[str]:
    constants = {"HOME": "/tmp", "PYTHONUNBUFFERED": "1"}
    if listens:
        constants |= {"AENV_HOST": "0.0.0.0", "AENV_PORT": str(paths.DATA_PORT)}
    return [f"{name}={value}" for name, value in {**constants, **spec.variables, "AENV_TOKEN": token}.items()]


def _labels(spec: SandboxSpec, placement: ContainerPlacement) -> dict[str, str]:
    name, _, version = spec.name.partition("@")
    own = {
        ENGINE: placement.engine,
        SERVER: placement.server,
        "aenv.name": name,
        "aenv.version": version,
        "aenv.owner": spec.variables.get("AENV_OWNER", ""),
        "aenv.ttl": spec.ttl,
        "aenv.network": spec.network.mode,
    }
    return {
        **{key: value for key, value in own.items() if value},
        **{f"{USER_PREFIX}{key}": value for key, value in spec.labels.items()},
    }


def _host_config(spec: SandboxSpec, placement: ContainerPlacement) -> dict[str, Any]:
    limits = spec.limits
    most = {"nofile": limits.open_files, "core": 0}
    if placement.user_processes:
        most["nproc"] = placement.user_processes
    config: dict[str, Any] = {
        "NetworkMode": placement.network,
        "Memory": limits.memory,
        "MemorySwap": limits.memory,
        "NanoCpus": max(1_000_000, round(limits.cpus * 1e9)),
        "PidsLimit": limits.processes,
        "Ulimits": [{"Name": name, "Soft": value, "Hard": value} for name, value in most.items()],
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "IpcMode": "private",
        "Privileged": False,
        "Init": False,
        "RestartPolicy": {"Name": "no"},
    }
    if placement.sockets is not None:
        config["Binds"] = [f"{placement.sockets}:{SOCKETS}:rw"]
    if placement.runtime:
        config["Runtime"] = placement.runtime
    if spec.gpus:
        config["DeviceRequests"] = [{"Driver": "nvidia", "Count": spec.gpus, "Capabilities": [["gpu"]]}]
    return config
