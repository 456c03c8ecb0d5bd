"""Sandboxes without namespaces: what an instance of the level ``confined`` can reach, and what is left of it.

Paths and process numbers of the host mean the same inside, so the tests name them and expect a refusal.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from aenv import Environment
from aenv.errors import AEnvError
from aenv.sdk.blocking import SyncEnvironment
from tests.conftest import run
from tests.isolation.conftest import PROBE, SECRET, Box, make_project
from tests.isolation.host import Platform, own_platform, start_shared_threads
from tests.local_instances import instance_of
from tests.waiting import wait_while


@pytest.fixture(scope="module")
def confined(confined_sandboxes: None) -> Iterator[Platform]:
    """A platform of its own that runs instances at this level."""
    start_shared_threads()
    with pytest.MonkeyPatch.context() as patch, ExitStack() as platforms:
        patch.setenv("PROBE_SECRET", SECRET)
        patch.setenv("AENV_ISOLATION", "confined")  # still set when it is stopped: it decides which platform is meant
        started = platforms.enter_context(own_platform())
        _settings(patch, started)
        yield started


@pytest.fixture(autouse=True)
def _on_our_platform(_no_settings_from_outside: None, monkeypatch: pytest.MonkeyPatch, confined: Platform) -> None:
    _settings(monkeypatch, confined)


@pytest.fixture
def platform(confined: Platform) -> Platform:
    return confined


def _settings(patch: pytest.MonkeyPatch, platform: Platform) -> None:
    for name in ("AENV_INSTANCE_URL", "DUMMY_INSTANCE_IP", "AENV_SYSTEM_URL"):
        patch.delenv(name, raising=False)
    for name, value in {**platform.variables, "AENV_ISOLATION": "confined"}.items():
        patch.setenv(name, value)


@pytest.fixture(scope="module")
def boxes(confined: Platform) -> Iterator[tuple[Box, Box]]:
    with pytest.MonkeyPatch.context() as patch, ExitStack() as open_ones:
        _settings(patch, confined)
        one, other = (Box(open_ones.enter_context(SyncEnvironment(str(PROBE)))) for _ in range(2))
        yield one, other


@pytest.fixture
def box(boxes: tuple[Box, Box]) -> Box:
    return boxes[0]


@pytest.fixture
def neighbour(boxes: tuple[Box, Box]) -> Box:
    return boxes[1]


@pytest.fixture
def fresh(confined: Platform) -> Iterator[Box]:
    with SyncEnvironment(str(PROBE)) as env:
        yield Box(env)


def folder_of(box: Box) -> Path:
    """Return the folder that an instance may write to."""
    return Path(box.python("import os; result = os.environ['TMPDIR']")).parent


def pid_of(box: Box) -> int:
    return int(box.python("import os; result = os.getpid()"))


def test_the_level_is_in_the_instances_record() -> None:
    async def isolation() -> str | None:
        async with Environment(str(PROBE)) as env:
            return (await instance_of(env)).isolation

    assert run(isolation()) == "confined"


def test_an_instance_has_its_own_writable_folder_and_nothing_else(box: Box, tmp_path: Path) -> None:
    own = folder_of(box)
    assert box.shell("pwd")["out"].strip() == f"{own}/app"
    assert (
        box.shell("echo mine > $HOME/a && echo mine > $TMPDIR/b && echo mine > c && cat $HOME/a $TMPDIR/b c")["out"]
        == "mine\n" * 3
    )
    tmp_path.chmod(0o777)
    (tmp_path / "open").write_text("secret")
    (tmp_path / "open").chmod(0o666)
    for code in (
        f"open({str(tmp_path / 'open')!r}).read()",
        f"open({str(tmp_path / 'open')!r}, 'w')",
        f"open({str(tmp_path / 'new')!r}, 'w')",
        f"import os; os.listdir({str(tmp_path)!r})",
        f"import os; os.unlink({str(tmp_path / 'open')!r})",
        f"import os; os.rename({str(tmp_path / 'open')!r}, 'mine')",
        f"import os; os.link({str(tmp_path / 'open')!r}, 'mine')",
        f"import os; os.truncate({str(tmp_path / 'open')!r}, 0)",
        "open('/etc/passwd').read()",
        "import os; os.listdir('/proc')",
        "import os; os.listdir('/')",
        "open('/dev/shm/x', 'w')",
        "open('/tmp/aenv-confined-x', 'w')",
    ):
        for forked in (False, True):
            assert box.refused(code, forked=forked) in ("EACCES", "EPERM", "EXDEV"), code
    assert (tmp_path / "open").read_text() == "secret"


def test_a_link_to_a_file_outside_leads_nowhere(box: Box, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("secret")
    (tmp_path / "outside").chmod(0o644)
    assert box.shell(f"ln -sf {tmp_path}/outside link && cat link")["code"] != 0


def test_a_neighbours_folder_is_closed_even_to_those_who_know_its_name(box: Box, neighbour: Box) -> None:
    neighbour.shell("echo secret > $HOME/secret && chmod -R 777 $HOME/..")
    other = folder_of(neighbour)
    for code in (
        f"open('{other}/home/secret').read()",
        f"open('{other}/home/planted', 'w')",
        f"import os; os.listdir('{other}')",
        f"import os; os.listdir('{other.parent}')",
        f"import os; os.rmdir('{other}/tmp')",
        f"import os; os.rename('{other}/home', '{other}/gone')",
    ):
        assert box.refused(code) in ("EACCES", "EPERM"), code
    assert neighbour.shell("cat $HOME/secret")["out"] == "secret\n"


def test_attributes_of_files_outside_stay_as_they_are(box: Box, neighbour: Box, tmp_path: Path) -> None:
    """Landlock does not govern them, so the filter does where the user is the same."""
    victim = tmp_path / "victim"
    victim.write_text("")
    victim.chmod(0o640)
    os.utime(victim, (1, 1))
    parent = folder_of(neighbour).parent
    for path in (victim, parent):
        before = path.stat()
        for code in (
            f"os.chmod({str(path)!r}, 0)",
            f"os.utime({str(path)!r}, (5, 5))",
            f"os.chown({str(path)!r}, os.getuid(), os.getgid())",
            f"os.setxattr({str(path)!r}, 'user.mark', b'1')",
        ):
            box.refused(f"import os; {code}")
            box.refused(f"import os; {code}", forked=True)
        assert (path.stat().st_mode, path.stat().st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
        with pytest.raises(OSError, match=r".*"):
            os.getxattr(path, "user.mark")


def test_no_process_outside_can_be_signalled_or_changed(box: Box, neighbour: Box, confined: Platform) -> None:
    outside = {os.getpid(), pid_of(neighbour), *(process.pid for process in confined.processes())} - {pid_of(box)}
    assert len(outside) > 3
    for pid in outside:
        for code in (
            f"os.kill({pid}, 0)",
            f"signal.pidfd_send_signal(os.pidfd_open({pid}), 0)",
            f"os.sched_setaffinity({pid}, [0])",
            f"os.setpriority(os.PRIO_PROCESS, {pid}, 10)",
            f"resource.prlimit({pid}, resource.RLIMIT_NOFILE, (9, 9))",
            f"open('/proc/{pid}/environ').read()",
            f"open('/proc/{pid}/cmdline').read()",
            f"open('/proc/{pid}/mem', 'rb')",
        ):
            refused = box.refused(f"import os, resource, signal; {code}", forked=True)
            assert refused in ("EPERM", "EACCES"), (pid, code, refused)
    for who in ("PRIO_USER", "PRIO_PGRP"):
        assert box.refused(f"import os; os.setpriority(os.{who}, 0, 10)", forked=True) == "EPERM"
    # All that kill(-1) reaches is the instance itself: the neighbour and the platform answer afterwards.
    box.shell("python3 -c 'import os; os.kill(-1, 0)' || true")
    assert neighbour.python("result = 1") == 1


def test_there_is_no_socket_to_reach_anything_with(box: Box, confined: Platform) -> None:
    for family in ("AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK", "AF_VSOCK", "AF_PACKET"):
        for kind in ("SOCK_STREAM", "SOCK_DGRAM"):
            assert box.refused(f"import socket; socket.socket(socket.{family}, socket.{kind})") == "EAFNOSUPPORT"
    assert box.refused("import socket; socket.socketpair(type=socket.SOCK_DGRAM)") == "EPROTONOSUPPORT"
    assert box.refused("import socket; socket.socketpair()") is None


def test_shared_memory_queues_and_watches_are_refused(box: Box) -> None:
    calls = {"shmget": (29, 1, 4096, 0o1600), "msgget": (68, 1, 0o1600), "semget": (64, 1, 1, 0o1600)}
    if os.uname().machine == "x86_64":
        for name, (number, *arguments) in {**calls, "inotify_init": (253,), "mq_open": (240, 0, 0)}.items():
            assert box.syscall(number, *arguments) == "ENOSYS", name


def test_secrets_of_the_platform_are_not_inherited(box: Box) -> None:
    assert box.python("import os; result = dict(os.environ)").get("PROBE_SECRET") is None
    assert SECRET not in box.shell("env")["out"]


def test_private_files_are_in_no_folder_that_programs_see(tmp_path: Path) -> None:
    code = """
        import subprocess
        from aenv import private, register_function, register_tool

        @register_tool
        def search() -> str:
            return subprocess.run("cat private/answer; find . -name answer", shell=True, capture_output=True,
                                  text=True).stdout

        @register_function
        def answer() -> str:
            return private("answer").read_text()
    """
    project = make_project(tmp_path, code, name="withheld")
    (project / "private").mkdir()
    (project / "private" / "answer").write_text("forty-two")
    with SyncEnvironment(str(project)) as env:
        assert env.call_tool("search", {}).text == ""
        assert env.call_function("answer", {}) == "forty-two"


def test_what_programs_write_into_the_project_is_never_imported(box: Box) -> None:
    box.shell("echo 'raise SystemExit(9)' > src/late.py; echo 'raise SystemExit(9)' > late.py")
    assert box.refused("import late") == "ModuleNotFoundError"


def test_everything_that_an_instance_started_ends_with_it(confined: Platform) -> None:
    with SyncEnvironment(str(PROBE)) as env:
        box = Box(env)
        own = folder_of(box)
        started = box.python("""
            import os, subprocess, time
            # a daemon: its parent is gone, and it has a session of its own
            result = []
            for _ in range(3):
                reading, writing = os.pipe()
                if os.fork() == 0:
                    os.setsid()
                    pid = os.fork()
                    if pid == 0:
                        while True:
                            time.sleep(3600)
                    os.write(writing, str(pid).encode())
                    os._exit(0)
                result.append(int(os.read(reading, 32)))
            result.append(subprocess.Popen(["sleep", "3600"], start_new_session=True).pid)
        """)
        assert own.exists()
        assert all(_alive(pid) for pid in started)
    assert not own.exists()
    assert not any(map(_alive, started))


def test_a_fork_bomb_ends_with_its_instance_and_hits_nobody_else(neighbour: Box) -> None:
    with SyncEnvironment(str(PROBE)) as env:
        Box(env).python("""
            import os, time
            if os.fork() == 0:
                os.setsid()
                made = 0
                while made < 200:  # each child makes its own share, too
                    if os.fork() == 0:
                        made += 20
                    else:
                        made += 1
                time.sleep(3600)
                os._exit(0)
            result = None
        """)
        bomb = pid_of(Box(env))
        assert neighbour.python("result = 1") == 1
    assert not _alive(bomb)
    assert neighbour.python("result = 2") == 2


@pytest.mark.parametrize("victim", ["leader", "zygote", "outer process of the zygote", "server"])
def test_nothing_is_left_when_a_process_of_ours_is_killed(
    victim: str, confined_sandboxes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with own_platform() as platform:
        _settings(monkeypatch, platform)
        env = SyncEnvironment(str(PROBE))
        env.initialize()
        box = Box(env)
        own, pid = folder_of(box), pid_of(box)
        daemon = box.python("import subprocess; result = subprocess.Popen(['sleep', '3600']).pid")
        parents = {process.pid: process.parent for process in platform.processes()}
        chain = {"leader": parents[pid], "zygote": parents[parents[pid]]}
        chain["outer process of the zygote"] = parents[chain["zygote"]]
        chain["server"] = platform.servers()[0].pid
        os.kill(chain[victim], signal.SIGKILL)
        wait_while(lambda: _alive(pid) or _alive(daemon), "the instance goes on")
        if victim != "leader":  # the only one that knows which folder it is; it goes with the zygote
            wait_while(own.exists, "files are left")
        with pytest.raises(AEnvError):
            env.call_tool("python", {"code": "result = 1"}, 5)
        with contextlib.suppress(AEnvError):
            env.release()
    wait_while(own.parent.parent.exists, "files are left")


def test_a_program_that_ends_its_runtime_is_the_agents_fault() -> None:
    with SyncEnvironment(str(PROBE)) as env:
        box = Box(env)
        pid = pid_of(box)
        with pytest.raises(AEnvError):
            box.call("shell", timeout=30, command=f"kill -9 {pid}")
        wait_while(lambda: _alive(pid), "the runtime goes on")
        with pytest.raises(AEnvError) as caught:
            box.python("result = 1")
        assert caught.value.fault == "policy"


def test_an_environment_can_refuse_the_level(tmp_path: Path) -> None:
    strict = make_project(tmp_path, name="strict", isolation="namespaces")
    with (
        pytest.raises(AEnvError, match=r"deployConfig.isolation is 'namespaces'.*'confined'"),
        SyncEnvironment(str(strict)),
    ):
        pass
    content = make_project(tmp_path, name="content", isolation="confined")
    with SyncEnvironment(str(content)) as env:
        assert Box(env).python("result = 1") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"network": ["pypi.org"]}, "network"),
        ({"network": "blackhole"}, "network"),
        ({"base": "./x.tar"}, "base|runs on"),
    ],
)
def test_what_the_level_lacks_is_refused_before_the_start(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    project = make_project(tmp_path, name="greedy", **options)
    with pytest.raises(AEnvError, match=said), SyncEnvironment(str(project)):
        pass


def test_an_instance_that_is_a_new_program_is_confined_as_well(tmp_path: Path) -> None:
    project = make_project(tmp_path, name="unforked", fork=False)
    with SyncEnvironment(str(project)) as env:
        box = Box(env)
        assert box.refused("open('/etc/passwd')") == "EACCES"
        assert box.refused("import socket; socket.socket()") == "EAFNOSUPPORT"
        assert box.refused(f"import os; os.kill({os.getpid()}, 0)") == "EPERM"


def test_an_import_that_fails_is_the_authors_fault_and_names_the_project(tmp_path: Path) -> None:
    project = make_project(tmp_path, "raise RuntimeError('no luck')", name="broken")
    with pytest.raises(AEnvError, match="no luck") as caught, SyncEnvironment(str(project)):
        pass
    assert "aenv-confined-" not in str(caught.value)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    except PermissionError:
        return True
    return state not in "ZX"
