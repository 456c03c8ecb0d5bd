"""Forks of one preloaded parent share no state."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aenv import Environment
from aenv.sdk.blocking import SyncEnvironment
from tests.conftest import run
from tests.isolation.conftest import PROBE, Box
from tests.isolation.host import Platform
from tests.isolation.test_processes import times_in_memory
from tests.local_instances import instance_of

MANY = 64
SEEDS = {
    "random": "import random; result = [random.random(), random.getrandbits(64)]",
    "a new generator": "import random; result = random.Random().random()",
    "the system's": "import os, secrets; result = [os.urandom(16).hex(), secrets.token_hex(16)]",
    "uuid4": "import uuid; result = str(uuid.uuid4())",
    "uuid1": "import uuid; result = str(uuid.uuid1())",
    "temporary names": "import tempfile; result = [next(tempfile._get_candidate_names()) for _ in range(3)]",
    "openssl": "import ssl; result = ssl.RAND_bytes(16).hex()",
}


async def ask(env: Environment, tool: str, **arguments: object) -> Any:
    answer = await env.call_tool(tool, arguments)
    assert not answer.is_error, answer.text
    return answer.data


def test_sixty_four_of_one_parent_share_no_random_number_no_shell_and_no_socket() -> None:
    async def work() -> None:
        envs = [Environment(str(PROBE)) for _ in range(MANY)]
        try:
            await asyncio.gather(*(env.initialize() for env in envs))
            for name, code in SEEDS.items():
                drawn = await asyncio.gather(*(ask(env, "python", code=code) for env in envs))
                assert len({str(one) for one in drawn}) == MANY, f"{name}: {drawn[:3]}"
            for file in ("/proc/self/ns/net", "/proc/self/ns/mnt", "/proc/self/ns/pid", "/proc/self/ns/ipc"):
                code = f"import os; result = os.readlink({file!r})"
                spaces = await asyncio.gather(*(ask(env, "python", code=code) for env in envs))
                assert len({str(one) for one in spaces}) == MANY, file
            await asyncio.gather(
                *(ask(env, "shell", command=f"echo {number} > /tmp/mine") for number, env in enumerate(envs))
            )
            said = await asyncio.gather(*(ask(env, "shell", command="cat /tmp/*") for env in envs))
            assert [one["out"].strip() for one in said] == [str(number) for number in range(MANY)]
            assert len({(await instance_of(env)).data_url for env in envs}) == MANY  # its own address
        finally:
            await asyncio.gather(*(env.release() for env in envs))

    run(work())


def test_a_variable_set_in_one_is_not_set_in_the_other(box: Box, neighbour: Box) -> None:
    box.python("import builtins, os, sys; builtins.mine = sys.mine = 1; os.environ['MINE'] = '1'")
    seen = neighbour.python("""
        import builtins, os, sys
        result = [hasattr(builtins, "mine"), hasattr(sys, "mine"), "MINE" in os.environ]
    """)
    assert seen == [False, False, False]
    box.python("import builtins, os, sys; del builtins.mine, sys.mine, os.environ['MINE']")


def test_shared_memory_queues_and_semaphores_belong_to_one_instance(box: Box, neighbour: Box) -> None:
    make = """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        made = libc.shmget(0x4D494E45, 4096, {flags})
        if made < 0:
            raise OSError(ctypes.get_errno(), "shmget")
    """
    create, find = 0o1600, 0
    assert box.refused(make.format(flags=create)) is None
    assert box.refused(make.format(flags=find)) is None
    assert neighbour.refused(make.format(flags=find)) == "ENOENT"


@pytest.mark.parametrize("what", ["variables", "arguments"])
def test_data_of_one_instance_is_not_in_the_memory_of_a_later_one(what: str) -> None:
    given = [f"given-to-number-{number:02}" + "-and-more" * 5 ** (number % 5) for number in range(10)]

    async def work() -> None:
        options: list[Any] = [
            {"environment_variables": {f"KEY{n}": one}} if what == "variables" else {"arguments": [one]}
            for n, one in enumerate(given)
        ]
        envs = [Environment(str(PROBE), **one) for one in options]
        try:
            for env in envs:
                await env.initialize()
            own = await ask(envs[-1], "python", code=times_in_memory("given-to-number-09"))
            others = [await ask(envs[-1], "python", code=times_in_memory(f"given-to-number-{n:02}")) for n in range(9)]
        finally:
            await asyncio.gather(*(env.release() for env in envs))
        assert own["value"] > 0
        assert [one["value"] for one in others] == [0] * 9

    run(work())


def test_a_seed_gives_the_same_random_numbers_twice(platform: Platform) -> None:
    draw = "import random; result = [random.random(), random.random()]"
    drawn = []
    for _ in range(4):  # the last of them are forks of one that is loaded
        with SyncEnvironment(str(PROBE), environment_variables={"AENV_SEED": "seventeen"}) as env:
            drawn.append(Box(env).python(draw))
    assert drawn[0] == drawn[1] == drawn[2] == drawn[3]


def test_the_parameters_of_a_request_reach_the_code(platform: Platform) -> None:
    look = "import os, json; result = [os.environ['AENV_DATASOURCE'], os.environ['AENV_OWNER']]; "
    look += "result.append(json.loads(os.environ['AENV_LABELS']))"
    with SyncEnvironment(str(PROBE), datasource="task-7", owner="ann", labels={"experiment": "a b"}) as env:
        assert Box(env).python(look) == ["task-7", "ann", {"experiment": "a b"}]
