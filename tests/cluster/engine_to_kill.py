"""A program that starts an instance on the cluster and waits to be killed: PROJECT IMAGE NAMESPACE."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from aenv.engines.base import SandboxSpec
from aenv.engines.kubernetes.kubernetes_settings import KubernetesSettings
from aenv.engines.kubernetes.pod_engine import KubernetesEngine
from aenv.isolation.limits.cgroups import Limits


async def main(project: Path, image: str, namespace: str) -> None:
    """Start an instance, say so, and wait."""
    engine = KubernetesEngine(project.parent / "killed", KubernetesSettings(namespace=namespace, image=image))
    await engine.start(SandboxSpec("killed@1.0.0", project, project, requests=Limits(64 << 20, 0.05, disk=16 << 20)))
    sys.stdout.write("started\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
