"""Instances on a custom root file system (a base)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aenv.errors import AEnvError
from aenv.sdk.blocking import SyncEnvironment
from tests.conftest import run
from tests.isolation.conftest import Box, make_project
from tests.isolation.host import Platform
from tests.tiny import make_root

PROGRAMS = ("sh", "cat", "ls", "id", "touch", "env", "rm")
RELEASE = "trixie"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system with only a few of the host's programs."""
    root = make_root(tmp_path_factory.mktemp("tiny") / "root", PROGRAMS)
    (root / "etc" / "secret").symlink_to("/etc/shadow")
    (root / "kept").mkdir()
    (root / "kept" / "file").write_text("of the base\n")
    return root


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Path:
    made = make_project(tmp_path_factory.mktemp("based"), name="based", base="./base/root")
    shutil.copytree(tiny, made / "base" / "root", symlinks=True)
    return made


@pytest.fixture
def box(project: Path, platform: Platform) -> Iterator[Box]:
    with SyncEnvironment(str(project), max_retries=0) as env:
        yield Box(env)


def test_commands_find_only_the_programs_of_the_base(box: Box) -> None:
    assert box.shell("cat /etc/os-release")["out"] == "NAME=tiny\n"
    assert set(box.shell("ls /usr/bin")["out"].split()) == set(PROGRAMS)
    assert box.shell("/usr/bin/python3 --version")["code"] == 127
    assert "uid=1000(env)" in box.shell("id")["out"]


def test_the_environments_code_can_import_all_its_packages(box: Box) -> None:
    code = "import sys, ssl, sqlite3, ctypes, pydantic; result = [sys.executable, list(sys.version_info[:2]), sys.path]"
    executable, version, path = box.python(code)
    assert version == list(sys.version_info[:2])
    assert all(entry.startswith(("/opt/aenv/", "/app")) for entry in path)
    done = box.shell(f"{executable} -c 'import sys, pydantic; print(sys.executable)'")
    assert done["out"] == f"{executable}\n", done["err"]


def test_an_instance_may_change_all_of_the_base_for_itself(box: Box, project: Path) -> None:
    done = box.shell("rm /kept/file && touch /etc/new /usr/bin/new && ls /kept /etc")
    assert done["code"] == 0, done["err"]
    assert "new" in done["out"]
    assert (project / "base" / "root" / "kept" / "file").read_text() == "of the base\n"
    assert not (project / "base" / "root" / "etc" / "new").exists()
    with SyncEnvironment(str(project)) as env:
        assert Box(env).shell("cat /kept/file; ls /etc/new")["out"] == "of the base\n"


def test_only_the_interpreters_files_of_the_host_are_visible(box: Box, platform: Platform) -> None:
    assert box.refused("open('/etc/secret').read()") == "ENOENT"
    assert box.refused(f"import os; os.listdir({str(platform.runtime)!r})") == "ENOENT"
    assert box.refused("import os; os.listdir('/opt/aenv/host/etc')") == "ENOENT"
    assert box.refused("import os; os.listdir('/opt/aenv/host/usr/bin')") in ("ENOENT", None)
    assert box.refused("open('/opt/aenv/python/pyvenv.cfg', 'a')") in ("EROFS", "EACCES")
    assert box.python("import os; result = os.listdir('/mnt')") == []
    mounts = box.python("result = [line.split()[:4] for line in open('/proc/self/mounts')]")
    visible = {
        place: options.split(",") for _, place, _, options in mounts
    }  # the last mount at a path is the visible one
    assert [place for place, options in visible.items() if "nosuid" not in options] == []
    assert {place for place, options in visible.items() if "rw" in options} <= {
        "/", "/tmp", "/var/tmp", "/run", "/home/env", "/dev/shm", "/dev/pts", "/app", "/proc"
    }  # fmt: skip


def test_an_instance_on_a_base_is_locked_down_like_any_other(box: Box) -> None:
    seen = box.python("""
        lines = (line.split(":") for line in open("/proc/self/status"))
        wanted = ("CapEff", "CapBnd", "Seccomp", "NoNewPrivs")
        result = {name: int(value, 16) for name, value in lines if name in wanted}
    """)
    assert seen == {"CapEff": 0, "CapBnd": 0, "NoNewPrivs": 1, "Seccomp": 2}
    assert box.python("import os; result = [os.getpid(), os.getuid(), os.listdir('/app') != []]") == [1, 1000, True]
    assert box.refused("import socket; socket.create_connection(('192.0.2.1', 80))") == "ENETUNREACH"


def test_changes_to_the_base_count_against_the_disk_limit(tmp_path: Path, tiny: Path, platform: Platform) -> None:
    made = make_project(tmp_path, name="full", base="./root", ephemeralStorage="8Mi")
    shutil.copytree(tiny, made / "root", symlinks=True)
    with SyncEnvironment(str(made)) as env:
        assert Box(env).refused("open('/kept/big', 'wb').write(bytes(32 << 20))") == "ENOSPC"


def aenv(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "aenv.cli", "base", *words], capture_output=True, text=True, check=False
    )


@pytest.mark.long
def test_a_named_base_can_be_added_used_and_removed(tiny: Path, tmp_path: Path, platform: Platform) -> None:
    project = make_project(tmp_path, name="named", base="tiny-1")
    with pytest.raises(AEnvError, match=r"no base 'tiny-1'.*aenv base add tiny-1 PATH"):
        SyncEnvironment(str(project), max_retries=0).initialize()
    with tarfile.open(tmp_path / "tiny.tar.gz", "w:gz") as archive:
        archive.add(tiny, ".")
    done = aenv("add", "tiny-1", str(tmp_path / "tiny.tar.gz"), "--output", "json")
    assert done.returncode == 0, done.stderr
    root = Path(json.loads(done.stdout)["path"])
    assert root.is_relative_to(os.environ["XDG_DATA_HOME"])
    assert aenv("add", "again", str(tmp_path / "tiny.tar.gz")).returncode == 0
    assert [row["name"] for row in json.loads(aenv("list", "-o", "json").stdout)] == ["again", "tiny-1"]
    with SyncEnvironment(str(project)) as env:
        assert Box(env).shell("cat /etc/os-release; rm /etc/os-release")["out"] == "NAME=tiny\n"
    assert aenv("remove", "again").returncode == 0
    assert root.exists()  # the other name still refers to it
    assert aenv("remove", "tiny-1").returncode == 0
    assert not root.exists()
    assert aenv("list").stdout == "there are none\n"
    assert aenv("remove", "tiny-1").returncode == 3


def test_variables_of_the_image_are_set_and_callers_override_them(
    tiny: Path, tmp_path: Path, platform: Platform
) -> None:
    from tests.images.test_oci_unpack import oci

    with tarfile.open(tmp_path / "layer.tar", "w") as archive:
        archive.add(tiny, ".")
    project = make_project(tmp_path, name="imaged", base="./image", environmentVariables={"FROM_CONFIG": "yes"})
    oci(project / "image", (tmp_path / "layer.tar").read_bytes())
    with SyncEnvironment(str(project), environment_variables={"PATH": "/usr/bin"}) as env:
        variables = Box(env).shell("env")["out"].splitlines()
    assert {"FROM_IMAGE=yes", "FROM_CONFIG=yes", "PATH=/usr/bin"} <= set(variables)


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("/", "neither the name of a base nor a path in the project"),
        ("../..", "neither the name of a base"),
        ("./link", "is not in the project"),
        ("./nothing", "does not exist"),
        ("./src", "neither a root file system nor an OCI image layout"),
        ("./config.json", "cannot be read as a tar"),
    ],
)
def test_an_invalid_base_is_refused_with_a_reason(tmp_path: Path, platform: Platform, base: str, message: str) -> None:
    project = make_project(tmp_path, name="wrong", base=base)
    (project / "link").symlink_to("/")
    with pytest.raises(AEnvError, match=message):
        SyncEnvironment(str(project), max_retries=0).initialize()


def test_batches_and_the_pool_work_on_a_base(project: Path, platform: Platform) -> None:
    from aenv.sdk.environment import Environment

    async def work() -> list[Any]:
        seen: list[Any] = []
        for _ in range(2):
            async with Environment.batch(str(project), 6) as group:
                async for env in group:
                    seen.append(
                        (await env.call_tool("shell", {"command": "cat /kept/file; rm /kept/file"})).data["out"]
                    )
        return seen

    assert run(work()) == ["of the base\n"] * 12


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Debian root file system, probably of another release than the host's."""
    if shutil.which("mmdebstrap") is None:
        pytest.skip("mmdebstrap is not installed (apt-get install mmdebstrap)")
    target = tmp_path_factory.mktemp("debian") / "root.tar"
    mode = "root" if os.geteuid() == 0 else "unshare"
    done = subprocess.run(
        ["mmdebstrap", f"--mode={mode}", "--variant=minbase", "--include=python3-minimal", RELEASE, str(target)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
    )
    if done.returncode != 0:
        pytest.skip(f"Debian cannot be bootstrapped here: {done.stderr.strip().splitlines()[-1]}")
    return target


@pytest.mark.long
def test_a_debian_of_another_release_works_as_a_base(debian: Path, tmp_path: Path, platform: Platform) -> None:
    project = make_project(tmp_path, name="debian", base="./root.tar")
    shutil.move(debian, project / "root.tar")
    with SyncEnvironment(str(project)) as env:
        box = Box(env)
        assert f"VERSION_CODENAME={RELEASE}" in box.shell("cat /etc/os-release")["out"]
        assert box.shell("python3 -c 'import sys; print(sys.prefix)'")["out"] == "/usr\n"
        assert box.shell("dpkg-query -W -f '${Status}' bash")["out"] == "install ok installed"
        assert box.python("import sys, pydantic; result = list(sys.version_info[:2])") == list(sys.version_info[:2])
        assert box.shell("touch /usr/local/bin/mine && ls /usr/local/bin")["out"] == "mine\n"


@pytest.mark.attack("grading")
def test_the_runtime_does_not_load_libraries_planted_in_the_base(box: Box) -> None:
    """At the next name lookup, glibc would load the libraries that /etc/nsswitch.conf names."""
    done = box.shell("""
        set -e
        for any in /lib/*/libc.so.6 /lib64/libc.so.6 /usr/lib/*/libc.so.6; do [ -e $any ] && break; done
        for place in /lib /usr/lib /lib64 /usr/lib64 /lib/x86_64-linux-gnu /usr/lib/x86_64-linux-gnu \
                     /lib/aarch64-linux-gnu /usr/lib/aarch64-linux-gnu; do
            if [ -d $place ]; then cat $any > $place/libnss_planted.so.2; fi
        done
        for database in passwd group hosts services protocols networks shadow initgroups; do
            echo "$database: planted files"
        done > /etc/nsswitch.conf
        cat /etc/nsswitch.conf
    """)
    assert "passwd: planted" in done["out"], done["err"]
    loaded = box.python("""
        import contextlib, grp, os, pwd, socket
        for look in (lambda: pwd.getpwnam("planted"), lambda: grp.getgrnam("planted"), lambda: os.getgrouplist("x", 5),
                     lambda: socket.getaddrinfo("planted.example", 80), lambda: socket.getservbyname("planted"),
                     lambda: socket.getprotobyname("planted"), lambda: os.path.expanduser("~planted")):
            with contextlib.suppress(OSError, KeyError):
                look()
        result = [line for line in open("/proc/self/maps") if "planted" in line]
    """)
    assert loaded == []
    assert box.python("import pwd; result = pwd.getpwnam('env').pw_dir") == "/home/env"
    assert box.python("import socket; result = socket.gethostbyname('localhost')") == "127.0.0.1"
