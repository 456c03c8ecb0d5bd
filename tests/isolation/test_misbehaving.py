"""Environments that are not what one would wish for."""

from __future__ import annotations

from pathlib import Path

import pytest

from aenv.errors import AEnvError, EnvironmentTimeoutError
from aenv.sdk.blocking import SyncEnvironment
from tests.isolation.conftest import make_project
from tests.isolation.host import Platform
from tests.waiting import wait_while

TOOL = """

from aenv import register_tool

@register_tool
def hello() -> str:
    return "hello"
"""


def odd(tmp_path: Path, code: str) -> Path:
    return make_project(tmp_path, code.strip() + "\n" + TOOL, name="odd", ephemeralStorage="16Mi")


WORKS = {
    "a thread": """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
""",
    "a subprocess": """
import subprocess
child = subprocess.Popen(["/bin/sleep", "600"])
""",
    "a forked child": """
import os, time
if os.fork() == 0:
    time.sleep(600)
    os._exit(0)
""",
    "sockets": """
import socket
server = socket.create_server(("127.0.0.1", 8080))
named = socket.socket(socket.AF_UNIX)
named.bind("\\0named")
pair = socket.socketpair()
""",
    "an event loop": """
import asyncio
asyncio.run(asyncio.sleep(0))
loop = asyncio.new_event_loop()
""",
    "a pool of processes": """
import concurrent.futures
pool = concurrent.futures.ThreadPoolExecutor(2)
assert pool.submit(int).result() == 0
""",
    "a flood of words": """
import sys
for _ in range(100):
    print("x" * 100000)
    print("y" * 100000, file=sys.stderr)
""",
    "other signal handlers": """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.alarm(0)
""",
    "an end of all variables": """
import os
os.environ.clear()
os.chdir("/")
""",
    "a blow to everybody": """
import os
os.kill(os.getpid(), 9)
os.kill(0, 0)
""",
}


@pytest.mark.long
@pytest.mark.parametrize("code", WORKS.values(), ids=WORKS)
def test_an_import_that_brings_something_with_it_works_in_every_instance(tmp_path: Path, code: str) -> None:
    project = odd(tmp_path, code)
    with SyncEnvironment(str(project)) as one, SyncEnvironment(str(project)) as other:
        assert one.call_tool("hello").data == "hello"
        assert other.call_tool("hello").data == "hello"


FAILS = {
    "a crash": ("x = 1\n\ny = x / 0\n", ["src/odd_env.py", ":3: ", "ZeroDivisionError"]),
    "a crash further in": (
        "def deep():\n    raise RuntimeError('deep inside')\n\ndeep()\n",
        ["src/odd_env.py", ":2: ", "deep inside"],
    ),
    "a missing module": ("import there_is_no_such_module\n", ["src/odd_env.py", ":1: ", "there_is_no_such_module"]),
    "bad syntax": ("def (:\n", ["src/odd_env.py", ":1: ", "invalid syntax"]),
    "an exit": ("import sys\nsys.exit('I am leaving')\n", ["src/odd_env.py", "SystemExit"]),
    "an exit that succeeds": ("import sys\nsys.exit(0)\n", ["src/odd_env.py", "SystemExit"]),
    "an interruption": ("raise KeyboardInterrupt\n", ["KeyboardInterrupt"]),
    "an end without a word": ("import os\nos._exit(3)\n", ["exit code 3"]),
    "an end with last words": ("import os\nos.write(2, b'last words')\nos._exit(3)\n", ["exit code 3", "last words"]),
    "a bad pointer": ("import ctypes\nctypes.string_at(0)\n", ["signal 11"]),
    "a refused system call": (
        "import ctypes\nctypes.CDLL(None).syscall(0x40000000 | 39)\n" * (__import__("os").uname().machine == "x86_64")
        or "import os\nos.abort()\n",
        ["signal"],
    ),
    "a very long story": ("raise RuntimeError('long ' * 200000)\n", ["RuntimeError"]),
    "a story of all kinds of letters": ("raise RuntimeError('\\udcff\\x00\\u20ac')\n", ["RuntimeError"]),
    "closed descriptors": ("import os\nos.closerange(3, 64)\n", [""]),
}


@pytest.mark.long
@pytest.mark.parametrize(("code", "words"), FAILS.values(), ids=FAILS)
def test_an_import_that_fails_says_why_and_where(
    tmp_path: Path, platform: Platform, code: str, words: list[str]
) -> None:
    project = odd(tmp_path, code)
    with pytest.raises(AEnvError) as caught:
        SyncEnvironment(str(project), max_retries=0).initialize()
    said = str(caught.value)
    for word in words:
        assert (f"{project}/{word}" if word.startswith("src/") else word) in said
    assert "/app/" not in said
    assert len(said) < 100_000
    wait_while(lambda: platform.instances_of(project), "it goes on")


@pytest.mark.parametrize("code", ["1 / 0\n", "import os\nos._exit(3)\n"], ids=["crashes", "exits"])
def test_an_import_that_fails_is_the_authors_fault_and_not_tried_again(tmp_path: Path, code: str) -> None:
    with pytest.raises(AEnvError) as caught:
        SyncEnvironment(str(odd(tmp_path, code)), max_retries=0).initialize()
    assert caught.value.fault == "env"
    assert not caught.value.retryable


def test_an_import_that_writes_into_every_descriptor_harms_itself_only(tmp_path: Path) -> None:
    code = """
import contextlib, os
for fd in range(3, 30):
    with contextlib.suppress(OSError):
        os.write(fd, b"what?")
os._exit(1)
"""
    with pytest.raises(AEnvError) as caught:
        SyncEnvironment(str(odd(tmp_path, code)), max_retries=0).initialize()
    assert "internal error" not in str(caught.value)


def test_nothing_declared_is_an_error(tmp_path: Path) -> None:
    project = make_project(tmp_path, "x = 1\n", name="odd")
    with pytest.raises(AEnvError, match="nothing is declared"):
        SyncEnvironment(str(project)).initialize()


def test_one_that_is_never_healthy_is_given_up_with_its_reason(tmp_path: Path) -> None:
    code = """
from aenv import register_health

@register_health
def health() -> dict:
    return {"status": "still waiting for the oracle"}
"""
    with pytest.raises(EnvironmentTimeoutError, match="still waiting for the oracle") as caught:
        SyncEnvironment(str(odd(tmp_path, code)), startup_timeout=8).initialize()
    assert caught.value.details["budget"] == "startup"


def test_one_whose_health_check_raises_is_given_up_with_its_reason(tmp_path: Path) -> None:
    code = """
from aenv import register_health

@register_health
def health() -> dict:
    raise RuntimeError("the oracle is out")
"""
    with pytest.raises(EnvironmentTimeoutError, match="the oracle is out"):
        SyncEnvironment(str(odd(tmp_path, code)), startup_timeout=8).initialize()


@pytest.mark.parametrize("code", ["import time\ntime.sleep(600)\n", "while True:\n    pass\n"], ids=["sleeps", "spins"])
def test_one_whose_import_never_ends_is_given_up(tmp_path: Path, platform: Platform, code: str) -> None:
    project = odd(tmp_path, code)
    env = SyncEnvironment(str(project), startup_timeout=1, timeout=3, max_retries=0)
    with pytest.raises(EnvironmentTimeoutError) as caught:
        env.initialize()
    assert caught.value.details["budget"] == "startup"
    wait_while(lambda: platform.instances_of(project), "it goes on without us", seconds=5)


def test_a_project_that_is_mended_works_at_once(tmp_path: Path) -> None:
    project = odd(tmp_path, "raise RuntimeError('not yet')\n")
    with pytest.raises(AEnvError, match="not yet"):
        SyncEnvironment(str(project)).initialize()
    (project / "src" / "odd_env.py").write_text(TOOL)
    with SyncEnvironment(str(project)) as env:
        assert env.call_tool("hello").data == "hello"
