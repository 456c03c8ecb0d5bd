"""The main job, start to end: make an environment, serve it, call it from the SDK and over MCP, run an agent on it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from aenv import Environment
from aenv.isolation.host_support import unsupported_reason
from aenv.testing import running

ENV = '''
from aenv import register_function, register_reward, register_tasks, register_tool

cart: dict[str, int] = {}


@register_tool
def add_to_cart(item: str, count: int = 1) -> dict:
    """Put something into the shopping cart.

    Args:
        item: What to buy.
        count: How many of it.
    """
    cart[item] = cart.get(item, 0) + count
    return {"cart": cart}


@register_function
def reset() -> dict:
    """Empty the cart, for the next episode."""
    cart.clear()
    return {}


@register_reward
def bought(wanted: dict[str, int]) -> float:
    """1 when the cart holds just what was wanted."""
    return 1.0 if cart == wanted else 0.0


@register_tasks
def tasks():
    """What agents are asked to do, and how that is graded."""
    for count in range(1, 9):
        yield {
            "id": f"apples-{count}",
            "instruction": f"Buy {count} apples.",
            "reward": {"arguments": {"wanted": {"apple": count}}},
        }
'''

MODEL = '''
"""A model with no key and no network. It cannot count beyond 6."""

from aenv.testing import calls


def answer(messages, tools):
    if messages[-1]["role"] == "tool":
        return "Done."
    count = int(messages[0]["content"].split()[1])
    return calls(("add_to_cart", {"item": "apple", "count": min(count, 6)}), text="I put them into the cart.")
'''


def say(text: str = "") -> None:
    print(text, flush=True)


def step(text: str) -> None:
    say(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}")


async def call(url: str) -> None:
    os.environ["AENV_INSTANCE_URL"] = url
    async with Environment("shop@1.0.0") as env:
        for tool in await env.list_tools():
            say(f"  tool    {tool['name']}: {tool['description']}")
        result = await env.call_tool("add_to_cart", {"item": "apple", "count": 2})
        say(f"  call    {result}")
        mistake = await env.call_tool("add_to_cart", {"item": "apple", "count": "two"})
        say(f"  mistake fault={mistake.fault}: {mistake.text}")
        say(f"  reward  {await env.call_reward({'wanted': {'apple': 2}})}")
        started, n = time.perf_counter(), 500
        for _ in range(n):
            await env.call_function("reset")
        say(f"  speed   {(time.perf_counter() - started) / n * 1000:.2f} ms per call")


async def call_over_mcp(url: str) -> None:
    from mcp import Client

    async with Client(f"{url}/mcp") as client:
        tools = await client.list_tools()
        say(f"  tools   {[tool.name for tool in tools.tools]}")
        result = await client.call_tool("add_to_cart", {"item": "pear"})
        say(f"  call    {result.structured_content}")


async def call_sandboxes(project: str) -> None:
    started = time.perf_counter()
    async with Environment(project) as first:
        say(f"  first   {(time.perf_counter() - started) * 1000:.0f} ms, with the platform and a zygote to start")
        started = time.perf_counter()
        async with Environment(project, environment_variables={"TASK": "2"}) as second:
            say(f"  second  {(time.perf_counter() - started) * 1000:.0f} ms")
            for env in (first, first, second):
                say(f"  cart    {(await env.call_tool('add_to_cart', {'item': 'apple'})).text}")
            say(f"  inside  {(await second.exec('id -un; ls /home; nproc')).stdout.split()}")


def run_agent(project: Path, folder: Path) -> None:
    """Run 64 episodes, show what came of them and one of them in full."""
    (folder / "model.py").write_text(MODEL)
    aenv, store = [sys.executable, "-m", "aenv.cli"], ["--store", str(folder / "records")]
    model = f"{folder}/model.py:answer"
    say("  aenv rollout shop --model model.py:answer --samples 8 --baseline")
    command = [*aenv, "rollout", str(project), "--model", model, "--samples", "8", "--baseline", "--run", "demo"]
    subprocess.run([*command, *store], check=True)
    listed = [*aenv, "trajectory", "list", "--run", "demo", "--task", "apples-7", "--limit", "1", "-o", "json"]
    found = json.loads(subprocess.run([*listed, *store], check=True, capture_output=True).stdout)
    say("\n  One of the episodes that failed: aenv trajectory show")
    subprocess.run([*aenv, "trajectory", "show", found[0]["id"], *store], check=True)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="aenv-demo-") as folder:
        aenv = [sys.executable, "-m", "aenv.cli"]
        step("1. aenv init shop: a project, offline")
        subprocess.run([*aenv, "init", "shop"], cwd=folder, check=True)
        project = Path(folder) / "shop"
        (project / "src" / "custom_env.py").write_text(ENV)
        step("2. Edit one file: src/custom_env.py")
        say(ENV.strip())
        step("3. Serve it")
        with running(project, log=Path(folder) / "log") as server:
            say(f"  {server.url}")
            step("4. Call it with the SDK")
            asyncio.run(call(server.url))
            step("5. Call it with an MCP client that we did not write")
            asyncio.run(call_over_mcp(server.url))
        os.environ |= {"AENV_RUNTIME_DIR": folder, "AENV_LOCAL_LINGER": "0"}
        del os.environ["AENV_INSTANCE_URL"]
        step("6. Or let Environment run it: isolated instances on this machine, with nothing started by hand")
        reason = unsupported_reason()
        if reason is None:
            asyncio.run(call_sandboxes(str(project)))
            step("7. Run an agent: 8 tasks, 8 samples each, with a scripted model")
            run_agent(project, Path(folder))
        else:
            say(f"  not on this host: {reason}")
    step("Done. Next: aenv init my-env && cd my-env && aenv run")


if __name__ == "__main__":
    main()
