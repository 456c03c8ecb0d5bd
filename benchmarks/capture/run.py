"""What the capture proxy adds to a model request, beside no proxy and beside LiteLLM's.

    python benchmarks/capture/run.py [--requests 1000] [--litellm PATH_OF_LITELLM] [--json FILE]

The model is a server on this machine that answers at once, so what is measured is the proxies. Each proxy is a process
of its own; its CPU time is read from /proc. LiteLLM is found on the PATH or given; without it, its row is left out.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aenv.http.client import HttpClient
from aenv.http.messages import Request, Response
from aenv.http.server import HttpServer
from aenv.http.url import ServerUrl

ANSWER = json.dumps(
    {
        "id": "r",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "x" * 400}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 700, "completion_tokens": 100, "total_tokens": 800},
    }
).encode()
MESSAGES = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"{n} " + "word " * 100} for n in range(7)]
BODY = json.dumps({"model": "m", "messages": MESSAGES}).encode()
TICKS = os.sysconf("SC_CLK_TCK")


async def serve_model(port: int) -> None:
    async def handle(request: Request) -> Response:
        return Response(200, ANSWER)

    await HttpServer(handle, max_body=1 << 24).listen(host="127.0.0.1", port=port)
    await asyncio.Event().wait()


async def serve_proxy(model: str, folder: str) -> None:
    from aenv.rollout.capture import CaptureProxy, Upstream
    from aenv.trajectory import EpisodeKey, TrajectoryStore

    with TrajectoryStore.open(Path(folder)) as store:
        recorder = store.record(EpisodeKey("run", "task"), {})
        async with CaptureProxy(Upstream(model, "key")) as proxy:
            print(proxy.open(recorder).url, flush=True)
            await asyncio.Event().wait()


@contextmanager
def process(*command: str, **options: object) -> Iterator[subprocess.Popen]:
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **options)
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(10)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def cpu(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(port: int, seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


async def drive(url: str, requests: int) -> list[float]:
    client = HttpClient(ServerUrl.parse(url), headers=[("authorization", "Bearer key")])
    taken = []
    try:
        for number in range(requests + 50):
            began = time.perf_counter()
            answer = await client.request("POST", "/v1/chat/completions", BODY)
            assert answer.status == 200, answer.body[:500]
            if number >= 50:
                taken.append((time.perf_counter() - began) * 1000)
    finally:
        client.close()
    return taken


def measure(url: str, pid: int, requests: int) -> dict[str, float]:
    before = cpu(pid)
    taken = asyncio.run(drive(url, requests))
    used = (cpu(pid) - before) * 1000 / (requests + 50)
    ordered = sorted(taken)
    return {
        "p50_ms": statistics.median(ordered),
        "p99_ms": ordered[int(len(ordered) * 0.99)],
        "cpu_ms": used,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--litellm", default=shutil.which("litellm"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run(serve_model(int(args.serve[1])) if args.serve[0] == "model" else serve_proxy(*args.serve[1:]))
        return
    rows: dict[str, dict[str, float]] = {}
    port = free_port()
    here = (sys.executable, __file__, "--serve")
    with tempfile.TemporaryDirectory() as folder, process(*here, "model", str(port)) as model:
        url = f"http://127.0.0.1:{port}"
        wait_for(port)
        rows["no proxy"] = measure(url, model.pid, args.requests)
        with process(*here, "proxy", url, f"{folder}/store") as proxy:
            assert proxy.stdout is not None
            address = proxy.stdout.readline().decode().strip()
            rows["aenv, recorded"] = measure(address, proxy.pid, args.requests)
        if args.litellm:
            config = Path(folder) / "litellm.yaml"
            config.write_text(
                f"model_list:\n  - model_name: m\n    litellm_params:\n      model: openai/m\n"
                f"      api_base: {url}/v1\n      api_key: key\nlitellm_settings:\n  num_retries: 0\n"
            )
            other = free_port()
            command = (args.litellm, "--config", str(config), "--port", str(other), "--host", "127.0.0.1")
            environment = {
                **os.environ,
                "LITELLM_TELEMETRY": "False",
                "NO_PROXY": "127.0.0.1",
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
            }
            with process(*command, env=environment) as litellm:
                wait_for(other)
                rows["LiteLLM proxy, not recorded"] = measure(f"http://127.0.0.1:{other}", litellm.pid, args.requests)
    direct = rows["no proxy"]["p50_ms"]
    print("| | p50 ms | p99 ms | added, p50 ms | CPU ms per request |\n|---|---|---|---|---|")
    for name, row in rows.items():
        figures = (row["p50_ms"], row["p99_ms"], row["p50_ms"] - direct, row["cpu_ms"])
        print(f"| {name} | {' | '.join(f'{figure:.2f}' for figure in figures)} |")
    if args.json:
        args.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
