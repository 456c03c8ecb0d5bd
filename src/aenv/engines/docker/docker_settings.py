"""Settings of the Docker engine, from variables."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from aenv.errors import ConfigError

SOCKETS = ("/var/run/docker.sock", "/run/podman/podman.sock")
_UNIX = "unix://"


@dataclass(frozen=True, slots=True)
class DockerSettings:
    """Decisions of the administrator."""

    socket: str = SOCKETS[0]
    """Unix socket of the Docker Engine API."""
    image: str = ""
    """Base image for environments without one: Python 3.11 or later, and this version of aenvironment."""
    runtime: str = ""
    """Container runtime, such as ``runsc``. Empty: the daemon's default."""

    @classmethod
    def from_environment(cls) -> Self:
        """Read the settings.

        Raises:
            ConfigError: ``DOCKER_HOST`` is not on this machine.
        """
        return cls(
            socket=_socket(os.environ.get("DOCKER_HOST", "")),
            image=os.environ.get("AENV_DOCKER_IMAGE", ""),
            runtime=os.environ.get("AENV_DOCKER_RUNTIME", ""),
        )


def _socket(host: str) -> str:
    if host.startswith(_UNIX):
        return host.removeprefix(_UNIX)
    if host:
        raise ConfigError(
            f"DOCKER_HOST={host}: the Docker engine runs instances on this machine only; expected unix:///PATH"
        )
    of_user = f"{os.environ.get('XDG_RUNTIME_DIR') or f'/run/user/{os.getuid()}'}/podman/podman.sock"
    return next((path for path in (*SOCKETS, of_user) if Path(path).exists()), SOCKETS[0])
