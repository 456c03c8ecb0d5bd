"""Foreign code, wherever it runs, finds no process that has rights: it cannot see, signal, open or trace one.

Foreign code runs at four places: when a module or a package is imported, in a preloaded parent between two forks, in an
instance, and in a program that a tool starts. Each walks over all process ids here.
"""

from __future__ import annotations

import textwrap
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from aenv.isolation.kernel import ptrace
from aenv.sdk.blocking import SyncEnvironment
from tests.attacks.ledger import Attacks
from tests.isolation.conftest import make_project
from tests.isolation.host import Platform, forget_lease, open_instances, own_platform
from tests.waiting import wait_while

WALK = r'''
import ctypes, errno, json, os, signal

LIBC = ctypes.CDLL(None, use_errno=True)
ATTACH, SEIZE = 16, 0x4206
READV, WRITEV = 310, 311
NEW_USER, NEW_PID, UNTRACED, PTRACED, PARENT = 0x10000000, 0x20000000, 0x00800000, 0x2000, 0x8000


def _status(pid):
    try:
        lines = open(f"/proc/{pid}/status").read().splitlines()
    except OSError:
        return {}
    return {line.partition(":")[0]: line.partition(":")[2].strip() for line in lines}


def _opens(path, mode):
    try:
        os.close(os.open(path, mode))
    except OSError:
        return False
    return True


def _signals(pid):
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    return True


def walk():
    """Every other process that is there, and what can be done to it."""
    own = os.getpid()
    found = {}
    for pid in sorted({int(name) for name in os.listdir("/proc") if name.isdigit()} | set(range(1, 400))):
        if pid == own:
            continue
        status, there = _status(pid), _signals(pid)
        if not status and not there:
            continue
        if status.get("State", "").startswith("Z"):
            continue
        found[pid] = {
            "name": status.get("Name"), "seen": bool(status), "signalled": there,
            "effective": status.get("CapEff"), "permitted": status.get("CapPrm"), "filter": status.get("Seccomp"),
            "memory": _opens(f"/proc/{pid}/mem", os.O_RDWR), "root": os.path.exists(f"/proc/{pid}/root/."),
            "environment": _opens(f"/proc/{pid}/environ", os.O_RDONLY), "files": _opens(f"/proc/{pid}/fd", 0),
            "traced": LIBC.ptrace(SEIZE, pid, 0, 0) == 0,
        }
    return found


def clones():
    """Flags with which a process in new namespaces, or one that no tracer sees, could be made."""
    made = []
    for flags in (NEW_USER, NEW_USER | UNTRACED, NEW_USER | NEW_PID | UNTRACED, UNTRACED, PARENT, NEW_USER | PTRACED):
        pid = LIBC.syscall(56, flags | signal.SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            os._exit(0)
        if pid > 0:
            made.append(hex(flags))
            os.waitpid(pid, 0)
    return made
'''
ENV = (
    WALK
    + r'''
import subprocess, sys
from aenv import register_tool

AT_IMPORT = {"walk": walk(), "clones": clones()}
IN_PARENT = {"times": 0, "walk": {}, "clones": []}


def between_forks(*_):
    """Runs in the preloaded parent whenever its timer fires; a fork has no timer, but what was noted before."""
    IN_PARENT["times"] += 1
    IN_PARENT["walk"].update({f"{IN_PARENT['times']}-{pid}": about for pid, about in walk().items()})
    IN_PARENT["clones"] += clones()
    while len(IN_PARENT["walk"]) > 300:
        IN_PARENT["walk"].pop(next(iter(IN_PARENT["walk"])))
    if os.getpid() != 1:
        signal.setitimer(signal.ITIMER_REAL, 0.001)


signal.signal(signal.SIGALRM, between_forks)
signal.setitimer(signal.ITIMER_REAL, 0.001)


@register_tool
def report(where: str) -> dict:
    signal.setitimer(signal.ITIMER_REAL, 0)
    if where == "at import":
        return AT_IMPORT
    if where == "in the preloaded parent":
        return IN_PARENT
    if where == "in a program that a tool starts":
        code = WALK + "\nprint(json.dumps({'walk': walk(), 'clones': clones()}))"
        return json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
    return {"walk": walk(), "clones": clones()}
'''
)
PLACES = ("at import", "in the preloaded parent", "in an instance", "in a program that a tool starts")
REACHES = ("memory", "root", "environment", "files", "traced")


def harm(about: dict[str, Any]) -> list[str]:
    """What is wrong with a process that foreign code has found."""
    if not about["seen"]:  # its number answers to signals, and nothing else is known of it
        return [what for what in REACHES if about[what]]
    rights = [what for what in ("effective", "permitted") if int(about[what], 16)]
    return rights + (["no filter"] if about["filter"] != "2" else [])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path, f"WALK = {WALK!r}\n{ENV}", name="foreign")


@pytest.mark.skipif(not ptrace.supported(), reason="there are no preloaded parents on this processor")
def test_foreign_code_finds_no_process_with_rights(project: Path, platform: Platform, attacks: Attacks) -> None:
    with ExitStack() as open_ones:
        envs = [open_ones.enter_context(SyncEnvironment(str(project))) for _ in range(8)]
        looked = [env.call_tool("report", {"where": PLACES[1]}, 60).data["times"] for env in envs]
        while not any(looked) and len(envs) < 64:  # a parent that had no time to look may have it until the next fork
            envs.append(open_ones.enter_context(SyncEnvironment(str(project))))
            looked.append(envs[-1].call_tool("report", {"where": PLACES[1]}, 60).data["times"])
        assert any(looked), "the parent never looked"
        reports = {}
        for place in PLACES:
            reports[place] = [env.call_tool("report", {"where": place}, 60).data for env in envs]
    for place, told in reports.items():
        for number, report in enumerate(told):
            for pid, about in report["walk"].items():
                wrong = harm(about)
                attacks.record("processes", f"{place}, {number}: process {pid} {about} {wrong}", held=not wrong)
            attacks.record("processes", f"{place}, {number}: clone {report['clones']}", held=not report["clones"])
    attacks.all_held()


PACKAGE = r"""
AT_IMPORT = {"walk": walk(), "clones": clones(), "own": _status("self"), "parent": os.getppid()}
"""
USES_PACKAGE = """
import hostile_package
import threading
from aenv import register_tool

threading.Thread(target=threading.Event().wait, daemon=True).start()  # so that the code itself cannot be forked


@register_tool
def report() -> dict:
    return hostile_package.AT_IMPORT
"""


def test_a_package_that_is_imported_ahead_has_no_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attacks: Attacks
) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "hostile_package.py").write_text(WALK + PACKAGE)
    monkeypatch.setenv("PYTHONPATH", str(packages))
    project = make_project(tmp_path, USES_PACKAGE, name="packaged")
    forget_lease()  # of the platform that the other tests share, whose Python does not find this package
    with own_platform() as platform:
        for name, value in platform.variables.items():
            monkeypatch.setenv(name, value)
        with ExitStack() as open_ones:
            envs = [open_ones.enter_context(SyncEnvironment(str(project))) for _ in range(5)]
            reports = [env.call_tool("report", {}, 60).data for env in envs]
    for number, report in enumerate(reports):
        own = {"seen": True, "effective": report["own"]["CapEff"], "permitted": report["own"]["CapPrm"],
               "filter": report["own"]["Seccomp"]}  # fmt: skip
        attacks.record("processes", f"package {number}: itself {own}", held=not harm(own))
        attacks.record("processes", f"package {number}: clone {report['clones']}", held=not report["clones"])
        for pid, about in report["walk"].items():
            attacks.record("processes", f"package {number}: {pid} {about}", held=not harm(about))
    attacks.all_held()


STEALS = """
import ctypes, os, signal, time
from aenv import register_tool

LIBC = ctypes.CDLL(None, use_errno=True)
LOADED_AT = time.monotonic()
{at_import}


@register_tool
def about() -> dict:
    lines = [line for line in open("/proc/self/status") if line.startswith(("CapEff", "Seccomp:"))]
    return {{"loaded": LOADED_AT, "pid": os.getpid(), "locked": "".join(lines).split()}}
"""
WAYS = {
    "it forks by itself whenever it can": """
def fork(*_):
    from aenv.isolation.forking import preloaded, zygote_spec
    if os.getpid() != 1 and LIBC.syscall(56, preloaded.fork_flags(zygote_spec.FRESH), 0, 0, 0, 0) == 0:
        time.sleep(600)

signal.signal(signal.SIGALRM, fork)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
""",
    "it starts a thread between forks": """
import threading

def start(*_):
    signal.setitimer(signal.ITIMER_REAL, 0)
    if os.getpid() != 1:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()

signal.signal(signal.SIGALRM, start)
signal.setitimer(signal.ITIMER_REAL, 0.5)
""",
    "it starts a process between forks": """
import subprocess

def start(*_):
    signal.setitimer(signal.ITIMER_REAL, 0)
    if os.getpid() != 1:
        subprocess.Popen(["/bin/sleep", "600"])

signal.signal(signal.SIGALRM, start)
signal.setitimer(signal.ITIMER_REAL, 0.5)
""",
    "it never answers": """
def hang(*_):
    if os.getpid() != 1:
        time.sleep(600)

signal.signal(signal.SIGALRM, hang)
signal.setitimer(signal.ITIMER_REAL, 0.5)
""",
    "it makes itself undumpable": "LIBC.prctl(4, 0, 0, 0, 0)",
    "it becomes another program": """
def leave(*_):
    if os.getpid() != 1:
        os.execv("/bin/sleep", ["sleep", "600"])

signal.signal(signal.SIGALRM, leave)
signal.setitimer(signal.ITIMER_REAL, 0.5)
""",
}


@pytest.mark.attack("preloaded parents")
@pytest.mark.parametrize("what", WAYS)
def test_a_misbehaving_parent_harms_only_itself(tmp_path: Path, platform: Platform, what: str) -> None:
    name = f"steals{list(WAYS).index(what)}"
    project = make_project(tmp_path, STEALS.format(at_import=WAYS[what]), name=name)
    with ExitStack() as open_ones:
        for _ in range(12):
            env = open_ones.enter_context(SyncEnvironment(str(project)))
            about = env.call_tool("about", {}, 60).data
            assert about["pid"] == 1
            assert about["locked"] == ["CapEff:", "0" * 16, "Seccomp:", "2"]
    with SyncEnvironment(str(Path(__file__).parent / "probe")) as env:  # and everybody else is served
        assert env.call_tool("shell", {"command": "true"}, 60).data["code"] == 0


@pytest.mark.long
def test_a_preloaded_parent_sees_the_processes_of_its_forks_and_no_init(tmp_path: Path, platform: Platform) -> None:
    """The first process of its namespace is there, but it is not shown, and ignores every signal."""
    code = textwrap.dedent("""
        import os, signal
        from aenv import register_tool

        SHOWN = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
        PID = os.getpid()
        if PID != 1:
            for number in range(1, 65):
                try:
                    os.kill(1, number)
                except OSError:
                    pass

        @register_tool
        def about() -> dict:
            return {"shown": SHOWN, "pid": PID}
    """)
    project = make_project(tmp_path, code, name="noinit")
    with ExitStack() as open_ones:
        envs = open_instances(open_ones, project, 4, lambda told: told["pid"] != 1)
        told = envs[-1].call_tool("about", {}, 60).data
    assert told == {"shown": [2], "pid": 2}
    wait_while(lambda: platform.instances_of(project), "instances are left")
