"""Time from a create request to the first answer on a Kubernetes cluster: a new pod, and one of a warm pool.

    KUBECONFIG=... AENV_KUBERNETES_IMAGE=... python benchmarks/cluster/run.py [--creates N] [--at-once N]

It uses the engine as the platform does. Everything that it makes is removed again.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from aenv.client.instance_client import InstanceClient
from aenv.engines.base import SandboxRef, SandboxSpec
from aenv.engines.kubernetes.kubernetes_settings import KubernetesSettings
from aenv.engines.kubernetes.pod_engine import KubernetesEngine
from aenv.http.url import ServerUrl
from aenv.isolation.limits.cgroups import Limits

SOURCE = "from aenv import register_tool\n\n@register_tool\ndef hello() -> int:\n    return 1\n"
SMALL = Limits(memory=64 << 20, cpus=0.02, disk=16 << 20)


async def first_call(ref: SandboxRef) -> None:
    client = InstanceClient(ServerUrl.parse(ref.data_url), token=ref.token)
    try:
        await client.call("/tools/hello", {}, timeout=60)
    finally:
        client.close()


async def one_pod(engine: KubernetesEngine, spec: SandboxSpec) -> float:
    began = time.perf_counter()
    ref = await engine.start(spec)
    await first_call(ref)
    took = time.perf_counter() - began
    await engine.stop(ref)
    return took


async def claimed(engine: KubernetesEngine, spec: SandboxSpec) -> float:
    while not engine.held(spec):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    began = time.perf_counter()
    ref = engine.claim(spec)
    assert ref is not None
    await first_call(ref)
    took = time.perf_counter() - began
    await engine.stop(ref)
    return took


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--creates", type=int, default=10)
    parser.add_argument("--at-once", type=int, default=10)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aenv-cluster-") as folder:
        project = Path(folder) / "project"
        project.mkdir()
        (project / "env.py").write_text(SOURCE)
        spec = SandboxSpec("bench@1.0.0", project, project, requests=SMALL, limits=Limits(memory=256 << 20))
        engine = KubernetesEngine(Path(folder) / "engine", KubernetesSettings.from_environment())
        try:
            pods = [await one_pod(engine, spec) for _ in range(args.creates)]
            together = await asyncio.gather(*(one_pod(engine, spec) for _ in range(args.at_once)))
            await engine.hold(spec, 2)
            ready = [await claimed(engine, spec) for _ in range(args.creates)]
        finally:
            await engine.close()
    print("| create to first answer | n | p50 | max |")
    print("|---|---|---|---|")
    for name, times in (("a new pod, one by one", pods), ("new pods at once", together), ("claimed", ready)):
        median, most = statistics.median(times) * 1000, max(times) * 1000
        print(f"| {name} | {len(times)} | {median:.1f} ms | {most:.1f} ms |")


if __name__ == "__main__":
    asyncio.run(main())
