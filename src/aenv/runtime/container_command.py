"""Tell whether this process is the command of a container that has a network of its own.

Version 0.1 served at every address, and existing containers say only ``python -m aenv.main DIR``. There, nothing
outside of the container could reach a server on loopback. A container with the network of its host does not count: the
server would then be open to everyone who reaches that host.
"""

from __future__ import annotations

import os
from pathlib import Path

MARKERS = (".dockerenv", "run/.containerenv")
IN_KUBERNETES = "KUBERNETES_SERVICE_HOST"


def is_container_command(root: Path = Path("/"), pid: int | None = None, parent: int | None = None) -> bool:
    """Return whether this process is what a container was started for.

    It is process 1, or its parent is (an init, a shell) or is not visible, in a container that is marked as one.
    """
    pid = os.getpid() if pid is None else pid
    parent = os.getppid() if parent is None else parent
    if pid == 1:
        return True
    marked = IN_KUBERNETES in os.environ or any((root / name).exists() for name in MARKERS)
    return marked and parent in (0, 1)


def has_own_network(root: Path = Path("/")) -> bool:
    """Return whether the network is not that of the host, as far as its interfaces tell.

    A host has a network card, or bridges for its containers. A virtual machine that is one pod has a card, too.
    """
    try:
        interfaces = list((root / "sys/class/net").iterdir())
    except OSError:
        return True  # no sysfs, as in gVisor: a sandbox
    if any((each / "bridge").exists() for each in interfaces):
        return False
    return IN_KUBERNETES in os.environ or not any((each / "device").exists() for each in interfaces)
