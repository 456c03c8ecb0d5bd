"""Instances that are forks of a preloaded parent share nothing that must be their own."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from aenv import Environment
from aenv.engines.native.parent_copies import most_parents
from aenv.engines.native.pool import MOST
from aenv.isolation.kernel import linux
from aenv.sdk.blocking import SyncEnvironment
from tests.isolation.conftest import make_project
from tests.isolation.host import Platform, Process
from tests.waiting import PATIENCE, wait_while

GROUP = 64
TOOLS = """
import os, random, ssl, subprocess, tempfile, time, uuid
from aenv import register_tool

LOADED_AT = time.monotonic()
NUMBER = random.Random(7)
FOLDER = tempfile.gettempdir()
shell = None

@register_tool
def about() -> dict:
    global shell
    shell = shell or subprocess.Popen(["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    shell.stdin.write("echo $$-$RANDOM-$RANDOM; readlink /proc/$$/ns/pid\\n")
    shell.stdin.flush()
    return {
        "loaded": LOADED_AT, "random": random.random(), "uuid": str(uuid.uuid4()), "seeded": NUMBER.random(),
        "bash": shell.stdout.readline() + shell.stdout.readline(), "files": os.listdir("/tmp"),
        "socket": os.readlink("/proc/self/ns/net"), "token": os.urandom(8).hex(), "ssl": ssl.RAND_bytes(8).hex(),
    }

@register_tool
def leave(name: str) -> None:
    open(f"/tmp/{name}", "w").close()
    os.environ["LEFT"] = name
"""


def test_a_group_of_rollouts_shares_what_was_loaded_and_nothing_else(tmp_path: Path) -> None:
    project = make_project(tmp_path, TOOLS, name="group")

    async def everybody() -> list[dict[str, Any]]:
        async with Environment.batch(str(project), GROUP) as batch:
            group = await batch.all()
            for number, env in enumerate(group):
                await env.call_tool("leave", {"name": f"by-{number}"})
            return [dict((await env.call_tool("about", {})).data) for env in group]

    told = asyncio.run(everybody())
    for different in ("random", "uuid", "bash", "socket", "token", "ssl"):
        assert len({one[different] for one in told}) == GROUP, different
    left = [[name for name in one["files"] if name.startswith("by-")] for one in told]
    assert left == [[f"by-{number}"] for number in range(GROUP)]
    assert len({one["seeded"] for one in told}) == 1  # what the author has seeded stays as it was seeded
    parents = len({one["loaded"] for one in told}) - 2  # two load for themselves, all others are forks
    assert 1 <= parents <= most_parents()


LEAVES = [
    ("threads", "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"),
    ("processes", "import subprocess; child = subprocess.Popen(['/bin/sleep', '600'])"),
    ("files or sockets", "import socket; server = socket.create_server(('127.0.0.1', 8080))"),
    ("shares memory", "import mmap; shared = mmap.mmap(-1, 4096)"),
    ("wrote files", "open('/app/left.txt', 'w').close()"),
    ("random numbers", "import random; secret = random.random()"),
    ("random numbers", "import random; generator = random.Random()"),
    ("random numbers (src/odd", "import uuid; name = uuid.uuid4()"),
    ("random numbers", "import secrets; token = secrets.token_hex()"),
    ("random numbers", "import os; salt = os.getrandom(8)"),
    ("random numbers", "salt = open('/dev/urandom', 'rb').read(8)"),
    ("random numbers", "import pathlib; salt = pathlib.Path('/dev/random').open('rb').read(8)"),
    (
        "random numbers",
        "import os; file = os.open('/dev/urandom', 0); salt = os.read(file, 8); os.close(file)",
    ),
    ("random numbers", "import ssl; salt = ssl.RAND_bytes(8)"),
    ("random numbers", "from ssl import RAND_bytes; salt = RAND_bytes(8)"),
]


@pytest.mark.long
@pytest.mark.parametrize(("reason", "code"), LEAVES)
def test_code_that_is_unfit_for_forking_is_loaded_by_each_instance(
    tmp_path: Path, platform: Platform, reason: str, code: str
) -> None:
    name = f"odd{LEAVES.index((reason, code))}"
    project = make_project(tmp_path, f"{code}\n{TOOLS}", name=name)
    with ExitStack() as open_ones:
        envs = [open_ones.enter_context(SyncEnvironment(str(project))) for _ in range(3)]
        assert len({env.call_tool("about", {}).data["loaded"] for env in envs}) == 3
    said = [line for line in platform.log().splitlines() if f"{name}@1.0.0 is loaded anew for every instance" in line]
    assert said, platform.log()
    assert reason in said[0]


def test_forks_live_on_when_their_preloaded_parent_dies_and_another_is_started(
    tmp_path: Path, platform: Platform
) -> None:
    project = make_project(tmp_path, TOOLS, name="orphans")
    with ExitStack() as open_ones:
        before = {p.pid for p in platform.processes()}
        envs = [open_ones.enter_context(SyncEnvironment(str(project))) for _ in range(4)]
        *_, second, third = envs
        loaded = second.call_tool("about", {}).data["loaded"]
        assert third.call_tool("about", {}).data["loaded"] == loaded
        instances = {p.pid for p in platform.instances()}
        parents = [p for p in platform.processes() if p.pid not in before | instances and not p.is_first]
        for process in parents:
            if process.depth == max(p.depth for p in parents) and process.name.startswith("python"):
                process.kill()
        for env in (second, third):
            assert env.call_tool("about", {}).data["loaded"] == loaded
        wait_while(lambda: not _works(project), "there is no other")


def test_a_fork_is_made_ahead_and_replaced_when_it_dies(tmp_path: Path, platform: Platform) -> None:
    project = make_project(tmp_path, TOOLS, name="ahead")
    deadline = time.monotonic() + PATIENCE

    def newborns() -> list[Process]:
        return [p for p in platform.processes() if p.is_traced and p.is_first and p.has_project(project)]

    def the_newborn() -> list[Process]:
        """The one that is left when all that is under way, for the pool, has been made."""
        found = newborns()
        time.sleep(0.1)
        return found if found == newborns() else []

    with ExitStack() as open_ones:
        envs = [open_ones.enter_context(SyncEnvironment(str(project))) for _ in range(4)]
        loaded = {env.call_tool("about", {}).data["loaded"] for env in envs[2:]}
        for _ in range(3):
            while len(found := the_newborn()) != 1:
                assert time.monotonic() < deadline, f"not one made ahead: {found}"
            [newborn] = found
            assert newborn.own_memory < 1 << 20, "it has run"
            newborn.kill()
            more = [open_ones.enter_context(SyncEnvironment(str(project))) for _ in range(MOST + 2)]
            loaded.update(env.call_tool("about", {}).data["loaded"] for env in more)  # more than were ready
            assert not newborn.alive
        assert len(loaded) == 1, "some were loaded anew"


def made_ahead(platform: Platform, project: Path) -> Process:
    """Return the only sandbox that is made ahead, once there is one. It may be replaced at any moment."""
    found: list[Process] = []

    def is_another_number() -> bool:
        found[:] = platform.preforked_of(project)
        return len(found) != 1

    wait_while(is_another_number, "not one was made ahead")
    return found[0]


def test_a_sandbox_that_loads_its_code_itself_is_pre_forked(tmp_path: Path, platform: Platform) -> None:
    project = make_project(tmp_path, f"{LEAVES[0][1]}\n{TOOLS}", name="blank")
    seen: list[Process] = []
    shown: list[list[str]] = []
    with ExitStack() as open_ones:
        for number in range(4):
            env = open_ones.enter_context(SyncEnvironment(str(project), arguments=[str(number)]))
            about = env.call_tool("about", {}).data
            shown.append(about["files"])  # the interpreter, if that is where it is
            assert shown[-1] == shown[0], "something is left of what it did before"
            blank = made_ahead(platform, project)
            assert blank not in seen, "it was not given out"
            seen.append(blank)
            if number == 1:
                blank.kill()  # and the next one is asked for at once
    wait_while(lambda: platform.instances_of(project), "some are left")


TOLD = """
import os, random, threading, time
from aenv import register_tool

LOADED_AT = time.monotonic()
told = []
{at_import}

@register_tool
def about() -> dict:
    told.sort()
    return {{
        "loaded": LOADED_AT, "told": list(told), "number": random.random(),
        "thread": threading.main_thread().ident == threading.get_ident() or threading.main_thread().is_alive(),
    }}
"""


@pytest.mark.parametrize(
    ("what", "code", "told"),
    [
        ("nobody", "", []),
        ("the author", "os.register_at_fork(after_in_child=lambda: told.append('child'))", ["child"]),
    ],
)
def test_fork_handlers_of_the_environment_are_run(tmp_path: Path, what: str, code: str, told: list[str]) -> None:
    project = make_project(tmp_path, TOLD.format(at_import=code), name=f"told{len(told)}")
    with ExitStack() as open_ones:
        envs = [open_ones.enter_context(SyncEnvironment(str(project))) for _ in range(6)]
        said = [env.call_tool("about", {}).data for env in envs]
    forks = [one for one in said if [other["loaded"] for other in said].count(one["loaded"]) > 1]
    assert len(forks) >= 4
    assert all(one["told"] == told for one in forks)
    assert len({one["number"] for one in said}) == 6
    assert all(one["thread"] for one in said)


def _works(project: Path) -> bool:
    with SyncEnvironment(str(project)) as env:
        return "loaded" in env.call_tool("about", {}).data


def test_the_thread_id_is_found_on_a_kernel_that_does_not_tell_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.getpid() < 100:
        pytest.skip("numbers this small are found in many places")
    told = linux.thread_id_address()
    monkeypatch.setattr(linux, "_PR_GET_TID_ADDRESS", 0x7FFF)
    assert linux.thread_id_address() == told


ASKED = """
import ctypes, os, re, time
from aenv import register_tool

LOADED_AT = time.monotonic()
{at_import}

@register_tool
def about() -> dict:
    seen = set()
    for place, mode, *_ in [line.split() for line in open("/proc/self/maps")]:
        if mode.startswith("rw"):
            start, end = (int(part, 16) for part in place.split("-"))
            memory = ctypes.string_at(start, end - start)
            seen.update(re.findall(rb"secret-([0-9])-of-[o]ne", memory))
    return {{
        "loaded": LOADED_AT, "now": os.environ.get("NUMBER"), "then": THEN, "tz": time.strftime("%z"),
        "secrets": sorted(int(number) for number in seen),
    }}
"""
READ_AT_IMPORT = [
    ("nothing", "THEN = None", True),
    ("another", "THEN = os.environ.get('OTHER') and os.getenv('HOME')", True),
    ("the one", "THEN = os.environ.get('NUMBER')", False),
    ("the one, and it must be there", "THEN = os.environ['NUMBER']", False),
    ("the one, as bytes", "THEN = os.environb.get(b'NUMBER', b'').decode()", False),
    ("all of them", "THEN = dict(os.environ).get('NUMBER')", False),
    ("by a program", "import subprocess; THEN = subprocess.getoutput('echo $NUMBER')", False),
    ("by a program of C's", "os.system('echo $NUMBER >/tmp/x'); THEN = open('/tmp/x').read().strip()", False),
    ("set by itself", "os.environ['NUMBER'] = 'mine'; THEN = None", False),
    ("set where it is not", "os.environ.setdefault('NUMBER', 'mine'); THEN = None", False),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("what", "code", "shared"), READ_AT_IMPORT)
def test_each_instance_has_its_own_variables_whichever_parent_loaded_it(
    tmp_path: Path, what: str, code: str, shared: bool
) -> None:
    name = f"asked{READ_AT_IMPORT.index((what, code, shared))}"
    project = make_project(tmp_path, ASKED.format(at_import=code), name=name)
    with ExitStack() as open_ones:
        told = []
        for number in range(5):
            variables = {"NUMBER": str(number), "SECRET": f"secret-{number}-of-one"}
            env = open_ones.enter_context(SyncEnvironment(str(project), environment_variables=variables))
            told.append(env.call_tool("about", {}).data)
    own = [str(number) for number in range(5)]
    assert [one["now"] for one in told] == (["mine"] * 5 if "= 'mine'" in code else own)
    if "NUMBER" in code and "mine" not in code:
        assert [one["then"] for one in told] == own
    assert [one["secrets"] for one in told] == [[number] for number in range(5)], "one has seen another's variables"
    assert len({one["loaded"] for one in told}) == (3 if shared else 5)


def test_variables_that_native_code_reads_are_never_shared(tmp_path: Path) -> None:
    project = make_project(tmp_path, ASKED.format(at_import="THEN = time.strftime('%z')"), name="native")
    with ExitStack() as open_ones:
        told = []
        for number in range(4):
            variables = {"TZ": f"XXX-{number}"}
            env = open_ones.enter_context(SyncEnvironment(str(project), environment_variables=variables))
            told.append(env.call_tool("about", {}).data)
    assert [one["then"] for one in told] == [one["tz"] for one in told] == ["+0000", "+0100", "+0200", "+0300"]
    assert len({one["loaded"] for one in told}) == 4
