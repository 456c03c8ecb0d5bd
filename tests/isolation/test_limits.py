"""Limits of greedy instances, and their effect on neighbours."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aenv import failure_reason
from aenv.errors import AEnvError
from aenv.isolation.files import disk_layers
from aenv.isolation.limits.cgroups import counts_processes_per_namespace
from aenv.sdk.blocking import SyncEnvironment
from tests.isolation.conftest import PROBE, Box, make_project
from tests.isolation.host import Platform, limited_by, own_platform, systemd_delegates_groups
from tests.tiny import make_root
from tests.waiting import PATIENCE, wait_while

MEMORY = 192 << 20
DISK = 16 << 20
PROCESSES = 512
OPEN_FILES = 4096


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with small limits."""
    return make_project(
        tmp_path_factory.mktemp("small"), name="small", cpu="0.25", memory="192Mi", ephemeralStorage="16Mi"
    )


def test_a_platform_raises_a_low_limit_of_open_files(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of the shell that starts it is often 1,024: not enough for a thousand instances."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        with own_platform() as started:
            monkeypatch.setenv("AENV_RUNTIME_DIR", str(started.runtime))
            with SyncEnvironment(str(small)):
                limits = [resource.prlimit(each.pid, resource.RLIMIT_NOFILE)[0] for each in started.servers()]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert limits
    assert min(limits) >= hard


@pytest.fixture
def greedy(small: Path) -> Iterator[Box]:
    with SyncEnvironment(str(small), max_retries=0) as env:
        yield Box(env)


@pytest.fixture
def groups(greedy: Box, platform: Platform) -> None:
    """Require control groups, or skip with the reason."""
    assert greedy.call("hello") == "hello"
    platform.processes()
    missing = [controller for controller in ("memory", "pids", "cpu") if not limited_by(platform, controller)]
    if missing:
        assert os.geteuid() != 0, "root can create control groups"
        assert missing == ["cpu"] or not systemd_delegates_groups(), "systemd delegates them"
        pytest.skip(f"this user may not limit {', '.join(missing)} with control groups here")


@pytest.fixture
def counted(request: pytest.FixtureRequest) -> None:
    """Require a process limit: by control group, or by the kernel per user namespace."""
    if not counts_processes_per_namespace():
        request.getfixturevalue("groups")


def answers(neighbour: Box, times: int = 20) -> None:
    for _ in range(times):
        assert neighbour.call("hello", timeout=PATIENCE) == "hello"


@pytest.mark.usefixtures("groups")
def test_a_fork_bomb_stays_within_its_process_limit(small: Path, neighbour: Box, platform: Platform) -> None:
    with SyncEnvironment(str(PROBE)) as env:
        bomb = Box(env)
        known = {p.pid for p in platform.processes()}
        bomb.shell(
            "b() { b | b & }; (sleep 0.3; b) >/dev/null 2>&1 &"
        )  # delayed, as it leaves no CPU time for the reply

        def refusals() -> int:
            events = [g.read_text().split() for path in platform.cgroups() for g in path.glob("*/pids.events")]
            return sum(int(words[words.index("max") + 1]) for words in events)

        wait_while(lambda: not refusals(), "the fork bomb was never limited")
        for _ in range(5):
            answers(neighbour, 3)
            assert len([p for p in platform.processes() if p.pid not in known]) <= PROCESSES
    answers(neighbour, 3)
    wait_while(lambda: [p for p in platform.processes() if p.name == "sh"], "the fork bomb still runs")


@pytest.mark.usefixtures("counted")
def test_an_instance_at_its_process_limit_still_answers(neighbour: Box) -> None:
    with SyncEnvironment(str(PROBE)) as env:
        full = Box(env)
        started = full.python("""
            import os, subprocess
            result = 0
            try:
                for _ in range(2000):
                    subprocess.Popen(["/bin/sleep", "600"])
                    result += 1
            except OSError as error:
                result = [result, error.strerror]
        """)
        assert started[0] < PROCESSES
        assert started[1] == os.strerror(11)
        assert full.call("hello") == "hello"
        answers(neighbour, 3)
        assert neighbour.shell("true; /bin/true && echo yes")["out"] == "yes\n"  # each has its own count
        full.python("import os; os.kill(-1, 9)")


@pytest.mark.usefixtures("groups")
def test_a_memory_hog_dies_and_its_neighbour_does_not(greedy: Box, neighbour: Box, small: Path) -> None:
    with pytest.raises(AEnvError) as caught:
        greedy.call("python", code=f"result = len(b'x' * {2 * MEMORY})")
    assert caught.value.fault == "policy"
    answers(neighbour)
    with pytest.raises(AEnvError) as caught:  # at once: the instance is gone
        greedy.call("hello", timeout=5)
    assert caught.value.fault == "policy"
    info = greedy.env.get_env_info()
    assert info["status"] not in ("Running", "RUNNING"), info
    with SyncEnvironment(str(small)) as env:
        assert Box(env).call("hello") == "hello"


@pytest.mark.usefixtures("groups")
def test_a_program_that_uses_too_much_memory_dies_alone(greedy: Box, neighbour: Box) -> None:
    done = greedy.call("forked", code=f"result = len(b'x' * {2 * MEMORY})")
    assert done["raised"] in ("signal 9", "MemoryError")
    assert greedy.call("hello") == "hello"
    answers(neighbour, 3)


def test_rlimits_bound_a_processs_memory_without_control_groups(greedy: Box, platform: Platform) -> None:
    if limited_by(platform, "memory"):
        pytest.skip("control groups limit all processes together here")
    assert greedy.refused(f"result = len(b'x' * {2 * MEMORY})") == "MemoryError"
    assert greedy.call("hello") == "hello"


@pytest.mark.attack("limits")
def test_uncounted_memory_is_refused_without_control_groups(greedy: Box, platform: Platform) -> None:
    if limited_by(platform, "memory"):
        pytest.skip("control groups count this memory here")
    assert greedy.refused("import os; os.memfd_create('hog')") == "ENOSYS"
    segment = """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        libc.shmget.argtypes = (ctypes.c_int, ctypes.c_size_t, ctypes.c_int)
        made = libc.shmget(0, {size}, 0o600)
        if made < 0:
            raise OSError(ctypes.get_errno(), "refused")
        libc.shmctl(made, 0, None)
    """
    assert greedy.refused(segment.format(size=56)) is None  # as PostgreSQL does
    assert greedy.refused(segment.format(size=64 << 10)) is None
    for size in ((64 << 10) + 1, MEMORY, 1 << 32, (1 << 32) + 56):
        assert greedy.refused(segment.format(size=size)) == "EINVAL"
    shared = "from multiprocessing import shared_memory as s; m = s.SharedMemory(create=True, size=1 << 20); m.unlink()"
    assert greedy.refused(shared, forked=True) is None


@pytest.mark.attack("limits")
def test_memory_files_count_as_memory(greedy: Box, neighbour: Box, platform: Platform) -> None:
    if not limited_by(platform, "memory"):
        pytest.skip("memory files are refused without control groups")
    hog = f"""
        import os
        file = os.memfd_create("hog")
        for _ in range({2 * MEMORY >> 20}):
            os.write(file, bytes(1 << 20))
    """
    try:
        ended = greedy.refused(hog, forked=True)
    except AEnvError as error:
        ended = f"the instance was killed: {error.fault}"
    assert ended in ("signal 9", "ENOMEM", "EFAULT", "ENOSPC", "the instance was killed: infra")
    answers(neighbour, 3)


def test_a_disk_filler_runs_out_of_space_in_every_folder(greedy: Box, neighbour: Box) -> None:
    fill = """
        import os
        written = 0
        try:
            with open({path!r}, "wb", buffering=0) as file:
                while written < {enough}:
                    written += file.write(bytes(1 << 16))
        except OSError as error:
            result = [written, os.strerror(error.errno)]
        else:
            result = [written, "there is no limit"]
    """
    full = [
        greedy.python(fill.format(path=f"{place}/filler", enough=4 * DISK))
        for place in ("/app", "/tmp", "/dev/shm", "/home/env", "/var/tmp", "/run")
    ]
    assert {reason for _, reason in full} == {os.strerror(28)}
    assert sum(written for written, _ in full) <= DISK
    assert neighbour.python("open('/tmp/room', 'wb').write(bytes(1 << 20)); result = 1") == 1
    assert greedy.call("hello") == "hello"


def test_a_descriptor_hog_runs_out_of_descriptors(fresh: Box, neighbour: Box) -> None:
    hog = """
        import os
        held = []
        try:
            while len(held) < 100000:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError as error:
            result = [len(held), error.strerror]
        else:
            result = [len(held), "there is no limit"]
        for fd in held:
            os.close(fd)
    """
    held, reason = fresh.python(hog)
    assert held <= OPEN_FILES
    assert reason == os.strerror(24)
    answers(neighbour, 3)
    assert fresh.call("hello") == "hello"


@pytest.mark.usefixtures("groups")
def test_a_busy_loop_is_throttled_and_its_neighbour_is_not(greedy: Box, neighbour: Box, platform: Platform) -> None:
    greedy.shell("for i in 1 2 3 4; do (while :; do :; done) >/dev/null 2>&1 & done")

    def not_yet() -> bool:
        stats = [g.read_text().split() for path in platform.cgroups() for g in path.glob("*/cpu.stat")]
        return not any(int(words[words.index("nr_throttled") + 1]) >= 5 for words in stats)

    wait_while(not_yet, "the loop is not throttled")
    answers(neighbour)
    assert greedy.call("hello", timeout=PATIENCE) == "hello"


def test_a_flood_of_output_does_not_fill_the_platforms_memory(greedy: Box, neighbour: Box, platform: Platform) -> None:
    server = platform.server()
    assert server is not None

    def resident() -> int:
        return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * 4096

    before = resident()
    greedy.python("import os; [os.write(2, b'x' * 65536) for _ in range(1000)]")
    answers(neighbour, 3)
    assert resident() - before < 32 << 20


def test_a_full_file_layer_is_enospc_and_not_the_end_of_the_instance(tmp_path: Path, neighbour: Box) -> None:
    """The defaults of storage, 5Gi, are more than the memory in which the files live."""
    fill = """
        import os, shutil
        most, written = shutil.disk_usage("/tmp").total, 0
        try:
            with open("/tmp/filler", "wb", buffering=0) as file:
                while True:
                    written += file.write(bytes(1 << 20))
        except OSError as error:
            result = [most, written, os.strerror(error.errno)]
    """
    with SyncEnvironment(str(make_project(tmp_path, name="full", memory="256Mi")), max_retries=0) as env:
        box = Box(env)
        most, written, reason = box.python(fill)
        assert (most, reason) == (128 << 20, os.strerror(28))
        assert (128 << 20) - (4 << 20) < written <= 128 << 20
        assert box.call("hello") == "hello"
        full = env.exec("echo still here; head -c 9999 /dev/zero > /tmp/more")
        assert (full.exit_code, full.stdout) == (1, "still here\n")
        assert "No space left" in full.stderr
        with pytest.raises(AEnvError, match="No space left"):
            env.files.write("/tmp/written", b"x" * (1 << 20))
        env.files.remove("/tmp/filler")
        assert env.exec("echo x > /tmp/more").exit_code == 0
    answers(neighbour, 3)


def test_a_storage_request_that_cannot_be_kept_is_refused(tmp_path: Path, neighbour: Box) -> None:
    project = str(make_project(tmp_path, name="asked", memory="256Mi"))
    with SyncEnvironment(project, storage="96Mi", max_retries=0) as env:
        assert Box(env).python("import shutil; result = shutil.disk_usage('/tmp').total") == 96 << 20
    with pytest.raises(AEnvError, match="at most half of it, 128Mi"):
        SyncEnvironment(project, storage="1Gi", max_retries=0).initialize()
    same = str(make_project(tmp_path, name="same", ephemeralStorageMedium="memory"))
    with SyncEnvironment(same, max_retries=0) as env:
        assert Box(env).call("hello") == "hello"


def attached() -> dict[str, str]:
    """Return all loop devices of this machine that are in use, by number, with what tells one use from the next."""
    uses = {}
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # detached meanwhile
            sequence = backing.parents[1] / "diskseq"  # since Linux 5.15
            uses[f"7:{backing.parts[3][4:]}"] = sequence.read_text() if sequence.exists() else backing.read_text()
    return uses


def loop_devices_of(platform: Platform) -> set[tuple[str, str]]:
    """Return the loop devices that processes of this platform have mounted; other tests use some at the same time."""
    mounted = {device for process in platform.processes() for device in process.mounted_devices}
    return {(device, use) for device, use in attached().items() if device in mounted}


FILL = """
    written = 0
    try:
        with open("/tmp/filler", "wb", buffering=0) as file:
            while True:
                written += file.write(bytes(1 << 20))
    except OSError as error:
        result = [written >> 20, error.errno]
"""


@pytest.mark.long
def test_files_on_disk_have_a_size_limit_and_nothing_is_left_of_them(tmp_path: Path, platform: Platform) -> None:
    """More files than memory: 192Mi beside 128Mi. On the host's system, and on a base."""
    deploy = {"memory": "128Mi", "ephemeralStorage": "192Mi", "ephemeralStorageMedium": "disk"}
    projects = [
        make_project(tmp_path, name="disk", **deploy),
        make_project(tmp_path, name="based", base="./root", **deploy),
    ]
    make_root(projects[1] / "root", ("sh", "cat", "head", "ls"))
    if os.geteuid() != 0:
        with pytest.raises(AEnvError, match="'disk' is not available: only root can limit the size"):
            SyncEnvironment(str(projects[0]), max_retries=0).initialize()
        return
    if disk_layers.unsupported_reason() is not None:
        pytest.skip(f"no files on disk here: {disk_layers.unsupported_reason()}")
    used: set[tuple[str, str]] = set()

    def left() -> set[tuple[str, str]]:
        return used & set(attached().items())

    for project in projects:
        with SyncEnvironment(str(project), max_retries=0) as env, SyncEnvironment(str(project), max_retries=0) as other:
            written, reason = Box(env).python(FILL)
            assert reason == errno.ENOSPC
            assert 170 <= written <= 192
            full = env.exec("head -c 9999999 /dev/zero > /app/more")  # which is in the same layer
            assert "No space left" in full.stderr
            assert Box(env).call("hello") == "hello"
            own = other.exec("echo x > /app/more && cat /app/more /tmp/filler")
            assert (own.stdout, own.exit_code) == ("x\n", 1), "each has its own"
            devices = loop_devices_of(platform)
            assert len(devices) == 2
            used.update(devices)
        wait_while(left, "loop devices are left")
    with SyncEnvironment(str(projects[0]), max_retries=0) as env:
        used.update(loop_devices_of(platform))
        [instance] = [process for process in platform.instances() if process.has_project(projects[0])]
        instance.kill()
        with pytest.raises(AEnvError):
            Box(env).call("hello")
    wait_while(left, "loop devices are left")


HUNGRY = """
    from aenv import register_reward, register_tool

    kept = []

    @register_tool
    def eat() -> int:
        while True:
            kept.append(b"x" * (1 << 22))

    @register_reward
    def reward() -> float:
        return float(len(b"x" * (600 << 20)))
"""


def test_an_instance_without_memory_says_so(tmp_path: Path, neighbour: Box) -> None:
    """Its process is ended where a control group limits it, and gets a MemoryError elsewhere."""
    project = make_project(tmp_path, HUNGRY, name="hungry", memory="256Mi")

    def said(env: SyncEnvironment, call: Callable[[SyncEnvironment], Any]) -> str:
        try:
            return str(call(env).text)
        except AEnvError as error:
            return error.message

    with SyncEnvironment(str(project), max_retries=0) as env:
        for _ in range(3):
            assert "out of memory" in said(env, lambda env: env.call_tool("eat", timeout=3 * PATIENCE))
    with SyncEnvironment(str(project), max_retries=0) as env:
        try:
            reason = failure_reason(env.call_reward(timeout=3 * PATIENCE))
        except AEnvError as error:
            reason = error.message
        assert "out of memory" in str(reason)
    answers(neighbour, 3)
