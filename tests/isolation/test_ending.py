"""An agent cannot end its instance from inside, and where it does the end counts against it."""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aenv.errors import InstanceEnded
from aenv.sdk.blocking import SyncEnvironment
from tests.isolation.conftest import PROBE, Box, make_project
from tests.isolation.host import Platform, limited_by

HANDLERS = """
import signal, sys
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM, signal.SIGRTMIN):
    signal.signal(number, lambda *_: sys.exit(7))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A probe whose author ends it on signals."""
    code = (PROBE / "src" / "probe.py").read_text().replace("import asyncio\n", f"{HANDLERS}\nimport asyncio\n", 1)
    return make_project(tmp_path_factory.mktemp("ending"), code, name="ending", memory="192Mi")


@pytest.fixture(params=["loaded", "forked"])
def box(request: pytest.FixtureRequest, project: Path, platform: Platform) -> Iterator[Box]:
    own = {"arguments": [request.node.name]} if request.param == "loaded" else {}
    for _ in range(0 if own else 3):  # what is asked for once or twice is not made from one that is loaded
        with SyncEnvironment(str(project)):
            pass
    with SyncEnvironment(str(project), max_retries=0, **own) as env:
        yield Box(env)


@pytest.mark.attack("grading")
@pytest.mark.parametrize("program", ["kill", "pidfd"])
def test_no_signal_from_inside_does_anything(box: Box, program: str) -> None:
    numbers = sorted(number for number in signal.valid_signals() if number != signal.SIGCHLD)
    send = "os.kill(1, n)" if program == "kill" else "signal.pidfd_send_signal(os.pidfd_open(1), n)"
    code = f"import os, signal\\nfor n in 2 * {[int(n) for n in numbers]}: {send}".replace("\\n", "\n")
    done = box.shell(f"{sys.executable} -c '{code}' && kill -TERM 1 && kill -TERM 1 && echo sent")
    assert done["out"] == "sent\n", done["err"]
    assert box.call("hello") == "hello"
    assert box.shell("true")["code"] == 0


def test_programs_that_tools_start_can_still_be_ended_by_signals(box: Box) -> None:
    done = box.shell(
        "sleep 600 & kill -TERM $!; wait $!; echo $?; sleep 600 & kill -INT $!; kill -HUP $!; wait $!; echo $?"
    )
    assert done["out"].split() == ["143", "129"]


@pytest.mark.attack("grading")
@pytest.mark.parametrize("kind", ["RLIMIT_CPU", "RLIMIT_NOFILE", "RLIMIT_AS", "RLIMIT_FSIZE"])
def test_programs_cannot_take_resources_from_the_runtime(box: Box, kind: str) -> None:
    threads = box.python("import os; result = os.listdir('/proc/self/task')")
    for pid in threads:
        code = f"import resource; resource.prlimit({pid}, resource.{kind}, (0, 0))"
        assert "PermissionError" in box.shell(f"{sys.executable} -c '{code}'")["err"]
    assert box.call("hello") == "hello"
    own = f"import resource; resource.setrlimit(resource.{kind}, resource.getrlimit(resource.{kind})); print(1)"
    assert box.shell(f"{sys.executable} -c '{own}'")["out"] == "1\n"
    assert resource.getrlimit(resource.RLIMIT_NOFILE)


def test_the_kernel_takes_a_tools_programs_before_the_runtime(box: Box) -> None:
    for starting in (
        "import subprocess; result = subprocess.check_output(['/bin/cat', '/proc/self/oom_score_adj']).decode()",
        "import os; result = os.popen('cat /proc/self/oom_score_adj').read()",
        """
        import os
        ours, theirs = os.pipe()
        if os.fork() == 0:
            os.write(theirs, open('/proc/self/oom_score_adj', 'rb').read())
            os._exit(0)
        result = os.read(ours, 100).decode()
        """,
    ):
        assert box.python(starting).strip() == "1000"
    assert int(box.python("result = open('/proc/self/oom_score_adj').read()")) < 1000


@pytest.mark.long
@pytest.mark.attack("grading")
def test_many_small_programs_that_use_up_the_memory_do_not_end_the_runtime(box: Box, platform: Platform) -> None:
    platform.processes()  # which notes what control groups there are
    if not limited_by(platform, "memory"):
        pytest.skip("without control groups, there is no limit for all processes together")
    done = box.shell("for i in $(seq 60); do (head -c 8000000 /dev/zero | tail | sleep 2) & done 2>/dev/null; wait")
    assert done["code"] == 0
    assert box.call("hello") == "hello"


@pytest.mark.attack("grading")
def test_an_instance_that_ran_out_of_memory_ended_by_the_agents_fault(box: Box, platform: Platform) -> None:
    platform.processes()  # which notes what control groups there are
    if not limited_by(platform, "memory"):
        pytest.skip("without control groups, a process that asks for too much gets a MemoryError")
    with pytest.raises(InstanceEnded) as caught:
        box.call("python", code=f"result = len(b'x' * {400 << 20})")
    assert caught.value.fault == "policy"
    assert "memory" in caught.value.message
