"""Environments that open each other, and how to publish them."""

from __future__ import annotations

from pathlib import Path

from aenv.hub.local_hub import LocalHub
from aenv.hub.open_hub import HubLocation, open_catalog
from tests.hub.parts import bundle_of, request_of

CODE = '''
import os
import subprocess
import sys

from aenv import Environment, SyncEnvironment, register_tool
from aenv.client.parent_platform import URL
from aenv.http.client import HttpClient
from aenv.http.url import ServerUrl

held = []


@register_tool
async def chain(names: list[str]) -> list[str]:
    """Open the first environment, let it open the others, and return the names of all, this one first."""
    own = os.environ["envNAME"]
    if not names:
        return [own]
    async with Environment(names[0], timeout=60) as env:
        inner = await env.call_tool("chain", {"names": names[1:]})
        if inner.is_error:
            raise RuntimeError(inner.content[0]["text"])
        return [own, *inner.data]


@register_tool
def chain_blocking(name: str) -> list[str]:
    with SyncEnvironment(name) as env:
        return env.call_tool("chain", {"names": []}).data


@register_tool
async def hold(name: str, ttl: str = "", variables: dict[str, str] | None = None) -> str:
    """Open an environment and keep it open."""
    env = Environment(name, environment_variables=variables or {}, **({"ttl": ttl} if ttl else {}))
    await env.initialize()
    held.append(env)
    return env.instance_id


@register_tool
async def ask(method: str, path: str, body: str = "", headers: dict[str, str] | None = None) -> list:
    """Send any request to the platform; return status and body."""
    http = HttpClient(ServerUrl.parse(URL), headers=(headers or {}).items())
    try:
        answer = await http.request(method, path, body.encode() if body else None, timeout=30)
        return [answer.status, answer.body.decode()]
    finally:
        http.close()


@register_tool
def program(code: str) -> list:
    """Run Python code in a program of its own; return its exit code and output."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    return [done.returncode, done.stdout + done.stderr]
'''

AGENT = '''
import os

from aenv import Environment
from aenv.adapters.agents.agent_environment import register_agent


async def answer(conversation: list[dict]) -> str:
    """Ask the agent below, if there is one, and add the own name to its reply."""
    own, message = os.environ["envNAME"], conversation[-1]["content"]
    below = {"director": "manager", "manager": "clerk"}.get(own)
    if below is None:
        return f"{own} did {message}"
    async with Environment(below, timeout=60) as agent:
        return f"{own} heard: {(await agent.call_tool('chat', {'message': message})).text}"


register_agent(answer)
'''
"""An agent that asks the one below it: director, manager, clerk."""


async def publish(
    data: Path, name: str, environments: list[str], version: str = "1.0.0", code: str = CODE, **deploy: object
) -> None:
    """Publish an environment that may open others in the hub of a data folder."""
    hub = LocalHub(open_catalog(HubLocation.of(data=data)))
    try:
        config = {"memory": "256Mi", **({"environments": environments} if environments else {}), **deploy}
        bundle, blobs = bundle_of(name, version, {"src/env.py": code.encode()}, deployConfig=config)
        for digest in await hub.missing(list(blobs)):
            await hub.put_blob(digest, blobs[digest])
        await hub.push(request_of(bundle, public=True), False)
    finally:
        await hub.close()
