"""An instance cannot see, reach or become a process of the host."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from tests.isolation.conftest import SECRET, Box
from tests.isolation.host import Platform
from tests.waiting import wait_while


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the host, of the same user as the platform."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    assert process.poll() is None, "it was killed from inside"
    process.communicate(b"\n")


def test_only_its_own_processes_are_in_proc(box: Box) -> None:
    seen = box.python("""
        import os
        result = [[int(n), open(f"/proc/{n}/cmdline").read()] for n in os.listdir("/proc") if n.isdigit()]
    """)
    assert [pid for pid, _ in seen] == [1]
    assert box.shell("ls -d /proc/[0-9]*")["out"].split()[0] == "/proc/1"
    assert box.python("import os; result = [os.getpid(), os.getppid()]") == [1, 0]


def test_a_process_of_the_host_cannot_be_signalled(box: Box, victim: subprocess.Popen[bytes]) -> None:
    for pid in {victim.pid, os.getpid(), os.getppid()} - {1}:  # there is a first one inside, too
        assert box.refused(f"import os; os.kill({pid}, 0)") == "ESRCH"
        assert box.refused(f"import os; os.pidfd_open({pid})") == "ESRCH"
        assert box.refused(f"open('/proc/{pid}/status')") == "ENOENT"


@pytest.mark.parametrize("target", ["0", "-1"])
def test_kill_minus_one_kills_only_the_instances_own_processes(
    box: Box, neighbour: Box, platform: Platform, target: str
) -> None:
    neighbour.shell("sleep 600 >/dev/null 2>&1 &")
    before = {p.pid for p in platform.zygotes() + platform.servers() + platform.instances()}
    assert box.refused(f"import os; os.kill({target}, 9)", forked=True) in ("signal 9", "ESRCH")  # nobody but itself
    assert neighbour.call("hello") == "hello"
    assert box.call("hello") == "hello"
    assert before <= {p.pid for p in platform.processes()}
    assert "sleep" in neighbour.shell("cat /proc/[0-9]*/comm")["out"]
    neighbour.shell("for p in /proc/[0-9]*; do grep -q sleep $p/comm && kill -9 ${p#/proc/}; done")


def test_an_instance_has_a_session_of_its_own(box: Box) -> None:
    assert box.python("import os; result = [os.getpgrp(), os.getsid(0)]") == [1, 1]


def test_the_priority_of_the_hosts_processes_cannot_be_changed(box: Box, platform: Platform) -> None:
    before = {p.pid: os.getpriority(os.PRIO_PROCESS, p.pid) for p in platform.zygotes() + platform.servers()}
    box.refused("import os; os.setpriority(os.PRIO_PGRP, 0, 5)", forked=True)
    box.refused("import os; os.setpriority(os.PRIO_USER, 1000, 5)", forked=True)
    assert {pid: os.getpriority(os.PRIO_PROCESS, pid) for pid in before} == before
    assert box.refused("import os; os.nice(-5)", forked=True) in ("EPERM", "EACCES")


STATUS = """
    wanted = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
    lines = (line.split(":") for line in open("/proc/self/status"))
    result = {name: int(value, 16) for name, value in lines if name in wanted}
"""
LOCKED = dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), 0) | {"NoNewPrivs": 1, "Seccomp": 2}


def test_an_instance_has_no_capability_no_new_privileges_and_a_filter(box: Box) -> None:
    assert box.python(STATUS) == LOCKED


def test_every_thread_of_an_instance_has_the_filter(box: Box) -> None:
    seen = box.python(STATUS.replace("/proc/self/status", "/proc/thread-self/status"))
    assert seen == LOCKED


def test_a_program_that_an_instance_starts_has_the_filter(box: Box) -> None:
    said = box.shell("cat /proc/self/status")["out"]
    values = {name: value.strip() for name, _, value in (line.partition(":") for line in said.splitlines())}
    assert {name: int(values[name], 16) for name in LOCKED} == LOCKED


def test_a_setuid_program_gains_nothing(box: Box) -> None:
    for command in ("su -c id", "su - root -c id", "sudo -n id", "newgrp root -c id", "pkexec id"):
        said = box.shell(f"{command} </dev/null")
        assert "uid=0" not in said["out"], command
    assert box.refused("import os; os.setuid(0)", forked=True) in ("EPERM", "EINVAL")
    assert box.refused("import os; os.setgid(0)", forked=True) in ("EPERM", "EINVAL")
    assert box.refused("import os; os.setgroups([0])", forked=True) in ("EPERM", "EINVAL")


def test_a_setuid_program_of_the_instance_gains_nothing(box: Box) -> None:
    said = box.shell("cp /usr/bin/id /tmp/id && chmod 6755 /tmp/id && /tmp/id")
    assert said["out"].startswith("uid=1000")
    assert "euid" not in said["out"]


def test_only_its_own_descriptors_are_open(fresh: Box) -> None:
    seen = fresh.python("""
        import os, stat
        result = []
        for name in os.listdir("/proc/self/fd"):
            try:
                about = os.fstat(int(name))
            except OSError:
                continue  # the listing's own
            kind = "socket" if stat.S_ISSOCK(about.st_mode) else os.readlink(f"/proc/self/fd/{name}").partition(":[")[0]
            result.append([int(name), kind])
    """)
    kinds = dict(seen)
    assert (kinds.pop(0), kinds.pop(1), kinds.pop(2)) == ("/dev/null", "pipe", "pipe")
    # The listener, connections, the loop's own, and by what the runtime is the last to be killed for memory.
    assert set(kinds.values()) <= {"socket", "anon_inode", "/proc/1/oom_score_adj"}
    peers = fresh.python("""
        import os, socket, stat
        result = []
        for name in os.listdir("/proc/self/fd"):
            try:
                if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                    one = socket.socket(fileno=os.dup(int(name)))
                    result.append([one.family, one.type, one.getsockname()])
                    one.close()
            except OSError:
                continue
    """)
    assert {family for family, _, _ in peers} <= {1}  # unix
    assert {kind for _, kind, _ in peers} <= {1}  # streams: no way to the warm parent, which speaks in packets
    assert len({name for _, _, name in peers if name}) == 1  # its own address


def test_a_program_that_an_instance_starts_inherits_three_descriptors(box: Box) -> None:
    assert box.shell("ls /proc/self/fd")["out"].split() == ["0", "1", "2", "3"]  # 3: the folder that ls reads


def test_a_secret_of_the_users_shell_is_nowhere(box: Box) -> None:
    assert os.environ["PROBE_SECRET"] == SECRET
    assert "PROBE_SECRET" not in box.shell("env")["out"]
    assert "PROBE_SECRET" not in box.python(READABLE + "result = open('/proc/self/environ').read()")


READABLE = "import ctypes; ctypes.CDLL(None).prctl(4, 1)\n"
"""An instance's own code may make itself readable; nobody else may."""
MEMORY = """
    head, rest = bytes.fromhex({head!r}), bytes.fromhex({rest!r})
    result = 0
    memory = open("/proc/self/mem", "rb", 0)
    for line in open("/proc/self/maps"):
        span, mode = line.split()[:2]
        if "r" not in mode or "[v" in line:
            continue
        start, end = (int(n, 16) for n in span.split("-"))
        try:
            memory.seek(start)
            content = memory.read(end - start)
        except OSError:
            continue
        at = content.find(head)
        while at >= 0:
            after = content[at + len(head) : at + len(head) + len(rest)]
            result += bytes(byte ^ 1 for byte in after) == rest
            at = content.find(head, at + 1)
"""


def times_in_memory(text: str) -> str:
    """Code that counts a text in its own memory, without having that text itself."""
    head, rest = text[:8].encode(), text[8:].encode()
    return READABLE + textwrap.dedent(MEMORY).format(head=head.hex(), rest=bytes(byte ^ 1 for byte in rest).hex())


def test_a_secret_of_the_users_shell_is_not_in_memory_either(box: Box) -> None:
    assert box.python("kept = ' '.join(['known', 'to', 'be', 'here'])\n" + times_in_memory("known to be here")) > 0
    assert box.python(times_in_memory(SECRET)) == 0


@pytest.mark.parametrize("name", ["mem", "environ", "fd/0", "exe"])
def test_a_program_that_an_instance_starts_cannot_read_or_change_its_memory(fresh: Box, name: str) -> None:
    assert fresh.python("import os; result = os.getpid()") == 1
    done = fresh.shell(f"cat /proc/1/{name} > /dev/null; : >> /proc/1/mem")
    assert done["err"].count("ermission denied") == 2, done


def test_core_dumps_are_off(box: Box) -> None:
    soft, hard = box.python("import resource; result = resource.getrlimit(resource.RLIMIT_CORE)")
    assert hard <= 1
    assert soft <= 1


def test_an_orphan_is_not_left_as_a_zombie(box: Box) -> None:
    box.shell("(sleep 0 &) ; (true &)")

    def zombies() -> object:
        return [line for line in box.shell("cat /proc/[0-9]*/stat")["out"].splitlines() if ") Z " in line]

    wait_while(zombies, "nobody waits for orphans")


@pytest.mark.long
@pytest.mark.parametrize(
    "start",
    [
        "p = subprocess.Popen(['sh', '-c', 'exit 7'])",
        "p = subprocess.Popen(['sh', '-c', 'exit 7'], close_fds=False)",
        "import multiprocessing as m; p = m.get_context('fork').Process(target=os._exit, args=(7,)); p.start()",
        "pid = os.fork() or os._exit(7)",
        "pid = os.posix_spawn('/bin/sh', ['sh', '-c', 'exit 7'], {})",
        "pid, fd = os.forkpty()\nif pid == 0: os._exit(7)",
    ],
)
@pytest.mark.parametrize("thread", ["first", "other"])
def test_a_child_of_the_authors_keeps_its_exit_code_for_the_author(fresh: Box, start: str, thread: str) -> None:
    """However long the author takes to ask for it."""
    assert fresh.call("late", begin=f"import os, subprocess\n{start}", thread=thread) == 7


def test_programs_that_want_a_terminal_get_one_of_their_own(box: Box, neighbour: Box) -> None:
    talk = """
        import os, pty
        pid, terminal = pty.fork()
        if pid == 0:
            os.execvp("sh", ["sh", "-c", "tty; stty size >/dev/null && echo fine"])
        result = b""
        try:
            while part := os.read(terminal, 4096):
                result += part
        except OSError:
            pass
        os.waitpid(pid, 0)
        os.close(terminal)
        result = result.decode().split()
    """
    assert box.python(talk) == ["/dev/pts/0", "fine"]
    held = "import builtins, pty; builtins.ends = pty.openpty(); import os; result = os.listdir('/dev/pts')"
    assert sorted(box.python(held)) == ["0", "ptmx"]
    assert neighbour.python("import os; result = os.listdir('/dev/pts')") == ["ptmx"]
    box.python("import builtins, os; [os.close(end) for end in builtins.ends]")


def test_a_child_of_native_code_is_left_to_it(box: Box) -> None:
    for _ in range(20):
        assert box.python("import os; result = os.waitstatus_to_exitcode(os.system('(true &); sh -c \"exit 7\"'))") == 7


def test_many_orphans_at_once_are_all_reaped(fresh: Box) -> None:
    fresh.shell("i=0; while [ $i -lt 200 ]; do (sleep 0.0$i &); i=$((i+1)); done")
    left = "import os; result = [n for n in os.listdir('/proc') if n.isdigit() and n != '1']"
    wait_while(lambda: fresh.python(left), "somebody is left")


def test_the_hosts_core_pattern_does_not_matter(box: Box) -> None:
    """A limit of 1 is what keeps a core from the program that the host has for them; 0 does not."""
    import resource

    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("this user's own limit is 0, and cannot be raised")
    assert box.python("import resource; result = resource.getrlimit(resource.RLIMIT_CORE)") == [1, 1]
