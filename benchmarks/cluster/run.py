"""Time from a create request to the first answer on a Kubernetes cluster: a new pod, one of a warm pool, a packed one.

    KUBECONFIG=... AENV_KUBERNETES_IMAGE=... python benchmarks/cluster/run.py [--creates N] [--at-once N] [--packed N]

It uses the engine as the platform does. Everything that it makes is removed again.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
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


async def created(engine: KubernetesEngine, spec: SandboxSpec) -> tuple[SandboxRef, float]:
    began = time.perf_counter()
    ref = await engine.start(spec)
    await first_call(ref)
    return ref, time.perf_counter() - began


async def one(engine: KubernetesEngine, spec: SandboxSpec) -> float:
    ref, took = await created(engine, spec)
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


async def many(engine: KubernetesEngine, spec: SandboxSpec, count: int, at_once: int) -> tuple[list[float], float]:
    """Create instances and keep all of them alive; return the times, and how long it took together."""
    turns = asyncio.Semaphore(at_once)

    async def turn() -> tuple[SandboxRef, float]:
        async with turns:
            return await created(engine, spec)

    began = time.perf_counter()
    found = await asyncio.gather(*(turn() for _ in range(count)))
    took = time.perf_counter() - began
    alive = sum([await engine.poll(ref) is None for ref, _ in found])
    assert alive == count, f"{alive} of {count} instances are alive"
    await asyncio.gather(*(engine.stop(ref) for ref, _ in found))
    return [each for _, each in found], took


@asynccontextmanager
async def an_engine(folder: Path, isolation: str) -> AsyncIterator[KubernetesEngine]:
    engine = KubernetesEngine(folder, KubernetesSettings.from_environment(), isolation=isolation)
    try:
        yield engine
    finally:
        await engine.close()


def show(name: str, times: list[float]) -> None:
    if times:
        ordered = sorted(times)
        figures = (statistics.median(ordered), ordered[int(len(ordered) * 0.95)], ordered[-1])
        shown = " | ".join(f"{each * 1000:.1f} ms" for each in figures)
        print(f"| {name} | {len(times)} | {shown} |", flush=True)


async def measure_pods(args: argparse.Namespace, folder: Path, spec: SandboxSpec) -> None:
    async with an_engine(folder / "pods", "") as engine:
        show("a new pod, one by one", [await one(engine, spec) for _ in range(args.creates)])
        show("new pods at once", await asyncio.gather(*(one(engine, spec) for _ in range(args.at_once))))
        await engine.hold(spec, 2)
        show("claimed", [await claimed(engine, spec) for _ in range(args.creates)])


async def measure_packed(args: argparse.Namespace, folder: Path, spec: SandboxSpec) -> None:
    async with an_engine(folder / "packed", args.isolation) as engine:
        show("packed, the first: with its host", [await one(engine, spec)])
        show("packed, one by one", [await one(engine, spec) for _ in range(args.creates * 10)])
        unlike = [replace(spec, variables={"N": str(each)}) for each in range(args.creates * 10)]
        show("packed, each with other variables", [await one(engine, each) for each in unlike])
        times, took = await many(engine, spec, args.packed, 16)
        show(f"packed, 16 at once, all alive, {args.packed / took:.0f} a second", times)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--creates", type=int, default=10)
    parser.add_argument("--at-once", type=int, default=10)
    parser.add_argument("--packed", type=int, default=100, help="instances that are alive at the same time")
    parser.add_argument("--isolation", default="confined")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aenv-cluster-") as name:
        folder = Path(name)
        project = folder / "project"
        project.mkdir()
        (project / "env.py").write_text(SOURCE)
        spec = SandboxSpec("bench@1.0.0", project, project, requests=SMALL, limits=Limits(memory=256 << 20))
        print("| create to first answer | n | p50 | p95 | max |")
        print("|---|---|---|---|---|", flush=True)
        if args.packed:
            await measure_packed(args, folder, replace(spec, requests=None))
        if args.creates and args.at_once:
            await measure_pods(args, folder, spec)


if __name__ == "__main__":
    asyncio.run(main())
