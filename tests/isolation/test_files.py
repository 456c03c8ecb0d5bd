"""Visibility of host files in an instance, and its own writable folders."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from aenv.isolation.files.rootfs import MASKED
from aenv.sdk.blocking import SyncEnvironment
from tests.isolation.conftest import HERE, PROBE, Box, make_project
from tests.isolation.host import Platform

WRITABLE = ("/tmp", "/var/tmp", "/run", "/home/env", "/dev/shm", "/app")


def picture(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder with their contents."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def project_unchanged() -> Iterator[None]:
    before = picture(PROBE)
    yield
    assert picture(PROBE) == before


@pytest.mark.parametrize(
    "path",
    [
        "/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssh", "/etc/ssl/private", "/etc/machine-id", "/etc/fstab",
        "/boot", "/srv", "/var/log", "/var/lib", "/var/run", "/sys/kernel", "/sys/fs/cgroup", "/host", "/mnt/upper",
        "/run/user", "/run/systemd", "/run/docker.sock", "/var/run/docker.sock", "/root/.ssh", "/root/.bashrc",
        "/home/env/.ssh",
    ],
)  # fmt: skip
def test_a_host_file_or_folder_is_not_visible(box: Box, path: str) -> None:
    assert box.python(f"import os; result = os.path.lexists({path!r})") is False


def test_the_repository_and_this_tests_files_are_not_visible(box: Box, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("mine")
    repository = HERE.parent.parent
    hidden = [str(secret)]
    if str(repository) not in os.environ.get("PYTHONPATH", "").split(os.pathsep):  # folders of PYTHONPATH are visible
        hidden += [str(path) for path in (HERE / "conftest.py", repository / "pyproject.toml", repository / ".git")]
    assert box.python(f"import os; result = [p for p in {hidden!r} if os.path.lexists(p)]") == []


def test_the_home_folders_contain_only_the_interpreter(box: Box) -> None:
    seen = box.python("""
        import os, sys
        result = []
        for top in ("/root", "/home"):
            for folder, _, files in os.walk(top):
                if not any(folder.startswith(p) for p in (sys.prefix, sys.base_prefix, *filter(None, sys.path))):
                    result += [os.path.join(folder, name) for name in files]
    """)
    assert seen == []


def test_the_platform_and_its_sockets_are_not_visible(box: Box, platform: Platform) -> None:
    assert platform.paths.socket.exists()
    assert box.python(f"import os; result = os.path.lexists({str(platform.runtime)!r})") is False


def test_host_file_systems_are_read_only_and_nosuid(box: Box) -> None:
    mounts = box.python("""
        result = []
        for line in open("/proc/self/mountinfo"):
            first, _, second = line.partition(" - ")
            place, options = first.split()[4:6]
            result.append([place, options.split(","), second.split()[0]])
    """)
    writable = {place for place, options, _ in mounts if "ro" not in options}
    own = {place for place, _, kind in mounts if kind in ("tmpfs", "overlay", "proc", "devpts")}
    assert writable <= own
    # The last one is covered by an empty file system: only the kernel needs it, and it shows no process.
    assert writable <= {*WRITABLE, "/mnt", "/proc", "/dev/pts", "/.proc/proc"}
    visible = {place: options for place, options, _ in mounts}  # the last mount at a path is the visible one
    assert [place for place, options in visible.items() if "nosuid" not in options] == []
    devices = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "pts")}
    devices |= {f"/proc/{name}" for name in MASKED}  # masked by /dev/null
    assert {place for place, options in visible.items() if "nodev" not in options} <= devices


@pytest.mark.long
def test_only_the_instances_own_folders_are_writable(box: Box) -> None:
    found = box.python("""
        import os
        result = []
        for folder, names, _ in os.walk("/"):
            if folder == "/":
                names[:] = [n for n in names if n != "proc"]
            names[:] = [n for n in names if not os.path.islink(os.path.join(folder, n))][:400]
            if os.access(folder, os.W_OK):
                result.append(folder)
                names.clear()
    """)
    assert set(found) == set(WRITABLE)


@pytest.mark.parametrize("path", ["/usr/bin/env", "/etc/passwd", "/etc/hosts", "/usr/lib/os-release", "/bin/sh"])
def test_a_host_program_or_setting_cannot_be_changed(box: Box, path: str) -> None:
    before = Path(path).read_bytes()
    for attempt in (
        f"open({path!r}, 'a').close()",
        f"import os; os.truncate({path!r}, 0)",
        f"import os; os.unlink({path!r})",
        f"import os; os.rename({path!r}, {path + '.old'!r})",
        f"import os; os.chmod({path!r}, 0o777)",
        f"import os; os.utime({path!r})",
        f"import os; os.symlink('x', {path + '.new'!r})",
    ):
        assert box.refused(attempt) in ("EROFS", "EACCES", "EPERM", "EXDEV"), attempt
    assert Path(path).read_bytes() == before


@pytest.mark.usefixtures("project_unchanged")
def test_a_file_written_into_the_project_is_visible_to_its_instance_only(box: Box, neighbour: Box) -> None:
    box.python("open('/app/made.txt', 'w').write('mine')")
    assert box.python("result = open('/app/made.txt').read()") == "mine"
    assert neighbour.refused("open('/app/made.txt')") == "ENOENT"
    assert not (PROBE / "made.txt").exists()


def test_an_instance_may_change_project_files_for_itself(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    before = picture(project)
    with SyncEnvironment(str(project)) as one, SyncEnvironment(str(project)) as other:
        Box(one).python("open('/app/src/made_env.py', 'a').write('# changed')")
        Box(one).python("open('/app/src/new.py', 'w').write('new')")
        assert Box(one).python("result = open('/app/src/made_env.py').read()").endswith("# changed")
        assert "# changed" not in Box(other).python("result = open('/app/src/made_env.py').read()")
        assert Box(other).refused("open('/app/src/new.py')") == "ENOENT"
    assert picture(project) == before


def test_a_project_that_only_its_owner_may_enter_works(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    project.chmod(0o700)
    with SyncEnvironment(str(project), max_retries=0) as env:
        assert env.call_tool("hello").data == "hello"


@pytest.mark.parametrize("place", WRITABLE)
def test_files_of_one_instance_are_invisible_to_another(box: Box, neighbour: Box, place: str) -> None:
    name = f"note-{os.urandom(8).hex()}"
    box.python(f"open('{place}/{name}', 'w').write('mine')")
    found = neighbour.python(f"""
        import os
        result = [top for top in {WRITABLE!r} for _, _, names in os.walk(top) if {name!r} in names]
    """)
    assert found == []
    assert not Path(place, name).exists()


@pytest.mark.parametrize(
    "target",
    ["/proc/1/root", "/proc/self/root", "/proc/thread-self/root", "/proc/self/cwd/../..", "../../../../../../../.."],
)
def test_a_link_out_of_the_writable_layer_ends_at_the_instances_own_root(box: Box, target: str) -> None:
    seen = box.python(f"""
        import os
        link = "/tmp/out-" + os.urandom(4).hex()
        os.symlink({target!r}, link)
        homes = os.listdir(link + "/home")  # the interpreter's home may be visible beside its own
        result = [os.path.samefile(link, "/"), os.path.exists(link + "/etc/shadow"), homes == os.listdir("/home")]
    """)
    assert seen == [True, False, True]


def test_a_hard_link_to_a_file_of_the_host_is_refused(box: Box) -> None:
    for source in ("/usr/bin/env", "/etc/passwd", "/dev/null", "/proc/self/status"):
        assert box.refused(f"import os; os.link({source!r}, '/tmp/linked')") in ("EXDEV", "EPERM", "EACCES")


@pytest.mark.usefixtures("project_unchanged")
def test_a_hard_link_within_the_project_does_not_change_it(box: Box) -> None:
    box.refused("""
        import os
        os.link("/app/src/probe.py", "/app/linked.py")
        open("/app/linked.py", "a").write("# changed")
    """)


def test_symlinks_in_the_project_do_not_lead_to_the_host(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("of the host")
    project = make_project(tmp_path, ephemeralStorage="16Mi")
    for name, target in (("absolute", str(secret)), ("relative", "../secret.txt"), ("shadow", "/etc/shadow")):
        (project / name).symlink_to(target)
    with SyncEnvironment(str(project)) as env:
        inside = Box(env)
        for name in ("absolute", "relative", "shadow"):
            assert inside.refused(f"open('/app/{name}')") == "ENOENT"


def test_the_upper_layer_is_out_of_reach(box: Box) -> None:
    assert box.refused("import os; os.listdir('/mnt')") == "EACCES"
    assert box.refused("import os; os.stat('/mnt/upper')") == "EACCES"


def test_the_device_folder_has_harmless_nodes_only(box: Box) -> None:
    seen = box.python("import os; result = sorted(os.listdir('/dev'))")
    assert set(seen) <= {
        "null", "zero", "full", "random", "urandom", "tty", "fd", "stdin", "stdout", "stderr", "shm", "pts", "ptmx",
    }  # fmt: skip
    assert box.refused("open('/dev/tty')") == "ENXIO"  # no controlling terminal
    assert box.refused("open('/dev/null', 'w').write('x')") is None


def test_instances_run_as_an_ordinary_user_who_owns_no_host_files(box: Box) -> None:
    seen = box.python("""
        import os
        result = [os.getresuid(), os.getresgid(), os.getgroups(), os.stat("/usr").st_uid, os.path.expanduser("~")]
    """)
    users, groups, further, owner_of_usr, home = seen
    assert (users, groups, home) == ([1000] * 3, [1000] * 3, "/home/env")
    assert set(further) <= {65534}  # unmapped groups of the host user
    assert owner_of_usr == 65534


@pytest.mark.attack("files")
@pytest.mark.parametrize("place", ["/app", "/.project"])
def test_sockets_and_pipes_of_the_host_in_the_project_lead_nowhere(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: Platform
) -> None:
    """A project's folder is also where editors and servers of its author put sockets."""
    project = make_project(tmp_path, name="s")
    monkeypatch.chdir(project)  # the path of a socket has 107 characters
    os.mkfifo("f")
    os.chmod("f", 0o666)
    reader = os.open("f", os.O_RDONLY | os.O_NONBLOCK)
    with socket.socket(socket.AF_UNIX) as listener, SyncEnvironment(str(project)) as env:
        listener.bind("t")  # after the zygote was started
        os.chmod("t", 0o777)
        listener.listen(1)
        box = Box(env)
        connect = f"import socket; socket.socket(socket.AF_UNIX).connect('{place}/t')"
        assert box.refused(connect) in ("ECONNREFUSED", "ENOENT")
        assert box.refused(connect, forked=True) in ("ECONNREFUSED", "ENOENT")
        write = f"import os; os.write(os.open('{place}/f', os.O_WRONLY | os.O_NONBLOCK), b'out')"
        assert box.refused(write) is not None
        assert os.read(reader, 3) == b""
    os.close(reader)
