"""One client process: creates, holds or calls instances through the public SDK. Prints one JSON line.

It connects to the local platform whose folder is in AENV_RUNTIME_DIR, and starts one if there is none.
"""

import argparse
import asyncio
import json
import resource
import sys
import time

from aenv import Environment


async def echo(env: Environment) -> None:
    result = await env.call_tool("echo", {"content": "scale"})
    if result.is_error:
        raise RuntimeError(f"unexpected answer: {result}")


def ready() -> None:
    """Tell the driver that the preparations are done, and wait for its signal to start."""
    print("ready", flush=True)
    sys.stdin.readline()


async def batches(args: argparse.Namespace) -> dict[str, float]:
    """Create, call and release batches, several at a time, until the time is over."""
    await _rounds(args, seconds=args.warm_up)
    ready()
    began = time.perf_counter()
    done = await _rounds(args, seconds=args.seconds)
    return {"count": done, "seconds": time.perf_counter() - began}


async def _rounds(args: argparse.Namespace, *, seconds: float) -> int:
    end, done = time.perf_counter() + seconds, 0

    async def one_after_another() -> None:
        nonlocal done
        while time.perf_counter() < end:
            async with Environment.batch(args.project, args.size) as batch:
                await asyncio.gather(*[asyncio.ensure_future(echo(env)) async for env in batch])
            done += args.size

    await asyncio.gather(*(one_after_another() for _ in range(args.parallel)))
    return done


async def calls(args: argparse.Namespace) -> dict[str, float]:
    """Call the tool of ``--size`` instances, all at the same time, until the time is over."""
    async with Environment.batch(args.project, args.size) as batch:
        envs = await batch.all()
        await asyncio.gather(*map(echo, envs))
        await asyncio.to_thread(ready)
        began, done = time.perf_counter(), 0
        end = began + args.seconds

        async def one_after_another(env: Environment) -> None:
            nonlocal done
            while time.perf_counter() < end:
                await echo(env)
                done += 1

        await asyncio.gather(*map(one_after_another, envs))
        return {"count": done, "seconds": time.perf_counter() - began}


async def alive(args: argparse.Namespace) -> dict[str, object]:
    """Hold ever more instances; at each level, create, call and release others one after another."""
    levels: dict[int, dict[str, object]] = {}
    held: list[Environment] = []
    for level in args.levels:
        grown = time.perf_counter()
        while len(held) < level:
            batch = Environment.batch(args.project, min(args.size, level - len(held)))
            envs = await batch.all()
            await asyncio.gather(*map(echo, envs))
            held += envs
        grown = time.perf_counter() - grown
        print(json.dumps({"level": level}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        levels[level] = {**await _series(args), "grown_seconds": grown}
        middle = sorted(levels[level]["create_ms"])[args.runs // 2]
        print(f"{level} alive after {grown:.0f} s: create p50 {middle:.1f} ms", file=sys.stderr, flush=True)
    for start in range(0, len(held), args.size):
        await asyncio.gather(*(env.release() for env in held[start : start + args.size]))
    return {"levels": levels}


async def _series(args: argparse.Namespace) -> dict[str, list[float]]:
    create, release = [], []
    for number in range(args.runs + 5):
        await asyncio.sleep(0.02)  # as with one rollout after another: a child is pre-forked meanwhile
        began = time.perf_counter()
        env = Environment(args.project, environment_variables={"NUMBER": str(number)})
        await echo(env)
        answered = time.perf_counter()
        await env.release()
        if number >= 5:  # the first start a parent
            create.append((answered - began) * 1000)
            release.append((time.perf_counter() - answered) * 1000)
    return {"create_ms": create, "release_ms": release}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("batches", "calls", "alive"))
    parser.add_argument("project")
    parser.add_argument("--size", type=int, default=64, help="instances in a batch, or to call")
    parser.add_argument("--parallel", type=int, default=2, help="batches at the same time")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--warm-up", type=float, default=3.0)
    parser.add_argument("--levels", type=lambda text: [int(part) for part in text.split(",")], default=[0])
    parser.add_argument("--runs", type=int, default=200)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    work = {"batches": batches, "calls": calls, "alive": alive}[args.what]
    print(json.dumps(asyncio.run(work(args))), flush=True)


if __name__ == "__main__":
    main()
