"""A dead local instance reports why it ended, and whose fault that is."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aenv import Environment
from aenv.errors import InstanceEnded
from aenv.isolation.limits.cgroups import Cgroups
from tests.conftest import run
from tests.local_instances import instance_of, local_api

DEADLY = """
import os
import sys

from aenv import register_reward, register_tool


@register_tool
def leave(code: int) -> None:
    print("last words", flush=True)
    os._exit(code)


@register_tool
def eat() -> int:
    print("hungry", flush=True)
    return len(b"x" * (1 << 30))


@register_tool
def count() -> int:
    return 1


@register_reward
def reward() -> float:
    return 1.0
"""


@pytest.fixture
def deadly(project: Path) -> Path:
    (project / "src" / "env.py").write_text(DEADLY)
    return project


async def ended(env: Environment) -> InstanceEnded:
    """Return the error of the next call, and check that later calls of any kind raise the same."""
    while True:  # its end is known a little before its socket is gone
        with pytest.raises(InstanceEnded) as caught:
            await env.call_tool("count")
        if not caught.value.details["sent"]:
            break
    assert not caught.value.retryable
    for call in (env.call_tool("count"), env.list_tools(), env.exec("true"), env.download("/etc/hosts")):
        with pytest.raises(InstanceEnded) as again:
            await call
        assert (again.value.message, again.value.fault) == (caught.value.message, caught.value.fault)
        assert again.value.details["sent"] is False
    return caught.value


def aenv(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "aenv.cli", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_end_of_its_time_to_live_is_a_timeout(deadly: Path) -> None:
    async def main() -> None:
        async with Environment(str(deadly), ttl="1s") as env:
            info = await env.get_env_info()
            name = info["instance_id"]
            while info["status"] == "Running":
                await asyncio.sleep(0.05)
                info = await env.get_env_info()
            error = await ended(env)
            assert error.message == f"instance {name} has ended: it has reached its time to live of 1s"
            assert (error.fault, error.details["ended_by"]) == ("timeout", "ttl")

    run(main())


def test_a_deletion_is_reported(deadly: Path) -> None:
    async def main() -> None:
        async with Environment(str(deadly)) as env:
            name = (await instance_of(env)).id
            await env.call_tool("count")
            async with local_api() as api:
                await api.delete_env_instance(name)
            error = await ended(env)
            assert error.message == f"instance {name} has ended: deleted"
            assert (error.fault, error.details["ended_by"]) == ("infra", "deleted")

    run(main())


def test_the_exit_code_and_the_log_of_a_fatal_call_are_reported(deadly: Path) -> None:
    async def main() -> str:
        async with Environment(str(deadly)) as env:
            name = (await instance_of(env)).id
            with pytest.raises(InstanceEnded, match="exit code 7") as caught:
                await env.call_tool("leave", {"code": 7})
            assert caught.value.details == {"ended_by": "exited", "sent": True}
            assert caught.value.fault == "env"
            assert "exit code 7" in (await ended(env)).message
            assert await env.logs() == "last words\n"
        assert await env.logs(tail=1) == "last words\n"  # also after its release
        return name

    name = run(main())
    said = aenv("instance", "get", name)
    assert "exit code 7" in said
    assert "Terminated" in said
    assert aenv("instance", "logs", name) == "last words\n"


def test_exceeding_the_memory_limit_is_the_agents_fault(deadly: Path) -> None:
    groups = Cgroups("aenv-test-probe")
    limited = "memory" in groups.controllers
    groups.remove()

    async def main() -> None:
        async with Environment(str(deadly)) as env:
            if not limited:  # without control groups the tool raises, and the instance survives
                assert (await env.call_tool("eat")).is_error
                return
            with pytest.raises(InstanceEnded, match="out of memory") as caught:
                await env.call_tool("eat")
            assert caught.value.fault == "policy"
            assert caught.value.details == {"ended_by": "out_of_memory", "sent": True}
            assert "out of memory" in (await ended(env)).message
            assert (await env.get_env_info())["status"] == "Terminated"

    run(main())


def test_a_kill_from_outside_is_infra(deadly: Path) -> None:
    async def main() -> None:
        async with Environment(str(deadly)) as env:
            data_url = (await instance_of(env)).data_url
            assert data_url is not None
            await env.call_tool("count")
            await asyncio.to_thread(kill_listener, Path(data_url.removeprefix("unix:")))
            while (await env.get_env_info())["status"] == "Running":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            error = await ended(env)
            assert "killed from outside" in error.message
            assert (error.fault, error.details["ended_by"]) == ("infra", "killed")

    run(main())


def kill_listener(path: Path) -> None:
    from aenv.isolation.limits.process_usage import listening_process

    pid = listening_process(path)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def test_the_end_of_the_local_platform_is_infra(deadly: Path, short_folder: Path) -> None:
    code = f"""
import asyncio
from aenv import Environment
from aenv.client import local_lease
from aenv.errors import InstanceEnded

async def main():
    env = Environment({str(deadly)!r})
    await env.initialize()
    await env.call_tool("count")
    local_lease.stop(local_lease.lease().where)
    try:
        await env.call_tool("count")
    except InstanceEnded as error:
        print(error.fault, error.details["ended_by"])

asyncio.run(main())
"""
    variables = {**os.environ, "AENV_RUNTIME_DIR": str(short_folder)}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)
    assert done.stdout == "infra lost\n", done.stderr
