"""System calls, devices and kernel settings that an instance can and cannot use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aenv.isolation.files import rootfs
from aenv.isolation.files.rootfs import MASKED
from aenv.isolation.forking import preloaded
from aenv.sdk.blocking import SyncEnvironment
from tests.isolation.conftest import Box, make_project

NUMBERS = {
    "x86_64": {
        "acct": 163, "add_key": 248, "bpf": 321, "chroot": 161, "clock_settime": 227, "clone3": 435,
        "delete_module": 176, "fanotify_init": 300, "finit_module": 313, "fsconfig": 431, "fsmount": 432,
        "fsopen": 430, "fspick": 433, "init_module": 175, "io_uring_enter": 426, "io_uring_register": 427,
        "io_uring_setup": 425, "ioperm": 173, "iopl": 172, "kcmp": 312, "kexec_file_load": 320, "kexec_load": 246,
        "keyctl": 250, "mount": 165, "mount_setattr": 442, "move_mount": 429, "name_to_handle_at": 303,
        "open_by_handle_at": 304, "open_tree": 428, "open_tree_attr": 467, "perf_event_open": 298, "pidfd_getfd": 438,
        "pivot_root": 155, "process_vm_readv": 310, "process_vm_writev": 311, "ptrace": 101, "quotactl": 179,
        "reboot": 169, "request_key": 249, "sethostname": 170, "setns": 308, "settimeofday": 164, "swapoff": 168,
        "swapon": 167, "syslog": 103, "umount2": 166, "unshare": 272, "userfaultfd": 323, "vhangup": 153,
        "getpid": 39, "clone": 56,
    },
    "aarch64": {
        "acct": 89, "add_key": 217, "bpf": 280, "chroot": 51, "clock_settime": 112, "clone3": 435,
        "delete_module": 106, "fanotify_init": 262, "finit_module": 273, "fsconfig": 431, "fsmount": 432,
        "fsopen": 430, "fspick": 433, "init_module": 105, "io_uring_enter": 426, "io_uring_register": 427,
        "io_uring_setup": 425, "kcmp": 272, "kexec_file_load": 294, "kexec_load": 104, "keyctl": 219, "mount": 40,
        "mount_setattr": 442, "move_mount": 429, "name_to_handle_at": 264, "open_by_handle_at": 265, "open_tree": 428,
        "open_tree_attr": 467, "perf_event_open": 241, "pidfd_getfd": 438, "pivot_root": 41, "process_vm_readv": 270,
        "process_vm_writev": 271, "ptrace": 117, "quotactl": 60, "reboot": 142, "request_key": 218,
        "sethostname": 161, "setns": 268, "settimeofday": 170, "swapoff": 225, "swapon": 224, "syslog": 116,
        "umount2": 39, "unshare": 97, "userfaultfd": 282, "vhangup": 58, "getpid": 172, "clone": 220,
    },
}.get(os.uname().machine, {})  # fmt: skip
HARMLESS = ("getpid", "clone", "clone3")
X32 = 0x40000000
NEW = {
    "mount": 0x00020000, "cgroup": 0x02000000, "uts": 0x04000000, "ipc": 0x08000000, "user": 0x10000000,
    "pid": 0x20000000, "net": 0x40000000,
}  # fmt: skip
NOTHING_WRITABLE = """
    import os
    result = []
    for folder, names, files in os.walk({top!r}):
        if folder == "/proc":
            names[:] = [n for n in names if not n.isdigit() and n not in ("self", "thread-self", "sys", "net")]
            files[:] = [n for n in files if n not in ("self", "thread-self", *{masked!r})]
        for name in files:
            try:
                os.close(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK))
            except OSError:
                continue
            result.append(os.path.join(folder, name))
"""
LAST_PID = "/proc/sys/kernel/ns_last_pid"  # anybody may open it; writing takes a capability

pytestmark = pytest.mark.skipif(not NUMBERS, reason="the numbers of this processor's system calls are not known here")


REFUSED = ("EPERM", "ENOSYS")
"""The second: in a fork of a preloaded parent these calls were made under the zygote's control, before it ran."""
TRACED = preloaded.traced_calls(0)


@pytest.mark.attack("system calls")
@pytest.mark.parametrize("name", sorted(set(NUMBERS) - set(HARMLESS)))
def test_a_system_call_that_no_sandbox_needs_is_refused(box: Box, name: str) -> None:
    # by the filter: nobody looked at the arguments
    assert box.syscall(NUMBERS[name], 0, 0, 0, 0, 0) in (REFUSED if name in TRACED else ["EPERM"])


def test_ordinary_system_calls_are_allowed(box: Box) -> None:
    assert box.syscall(NUMBERS["getpid"]) is None


@pytest.mark.attack("system calls")
@pytest.mark.parametrize("kind", NEW)
def test_a_process_in_a_new_namespace_cannot_be_made(box: Box, kind: str) -> None:
    sigchld = 17
    assert box.syscall(NUMBERS["clone"], NEW[kind] | sigchld, 0, 0, 0, 0) in REFUSED
    assert box.syscall(NUMBERS["unshare"], NEW[kind]) in (REFUSED if kind == "cgroup" else ["EPERM"])
    assert box.syscall(NUMBERS["clone"], (1 << 32) | NEW[kind] | sigchld, 0, 0, 0, 0) in REFUSED


def test_clone3_fails_as_an_unknown_call(box: Box) -> None:
    assert box.syscall(NUMBERS["clone3"], 0, 0) == "ENOSYS"


@pytest.mark.attack("system calls")
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="only x86-64 has a second table of system calls")
@pytest.mark.parametrize("name", ["getpid", "mount", "ptrace"])
def test_a_call_of_the_x32_table_kills_the_process(box: Box, name: str) -> None:
    sigsys = 31
    assert box.syscall(X32 | NUMBERS[name]) == f"signal {sigsys}"


@pytest.mark.attack("system calls")
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="only x86-64 runs 32-bit calls beside its own")
def test_a_32_bit_system_call_kills_the_process(box: Box) -> None:
    attempt = """
        import ctypes, mmap
        code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        code.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20 (getpid); int 0x80; ret
        result = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
    """
    assert box.refused(attempt, forked=True) in ("signal 31", "signal 11")  # 11: this kernel has no such calls


def test_the_filter_holds_in_every_program_that_is_started(box: Box) -> None:
    for command in ("unshare -U true", "unshare -n true", "mount -t tmpfs x /tmp", "chroot / true", "umount /tmp"):
        done = box.shell(f"PATH=$PATH:/usr/sbin:/sbin {command}")
        assert done["code"] != 0, command


@pytest.mark.attack("isolation")
@pytest.mark.parametrize("mode", ["S_IFCHR", "S_IFBLK"])
def test_a_device_cannot_be_made(box: Box, mode: str) -> None:
    for place in ("/tmp", "/app", "/dev", "/dev/shm"):
        attempt = f"import os, stat; os.mknod('{place}/device', stat.{mode} | 0o666, os.makedev(1, 1))"
        assert box.refused(attempt) in ("EPERM", "EROFS", "EACCES")


@pytest.mark.attack("isolation")
def test_a_capability_in_a_files_attributes_is_refused(box: Box) -> None:
    attempt = """
        import os, shutil, struct
        shutil.copy("/usr/bin/id", "/tmp/raised")
        os.setxattr("/tmp/raised", "security.capability", struct.pack("<IIIII", 0x02000001, 0xFFFFFFFF, 0, 0xFF, 0))
    """
    assert box.refused(attempt) in ("EPERM", "ENOTSUP")


@pytest.mark.attack("isolation")
def test_no_setting_of_the_kernel_can_be_opened_for_writing(box: Box) -> None:
    assert set(box.python(NOTHING_WRITABLE.format(top="/proc/sys", masked=MASKED))) <= {LAST_PID}
    assert box.refused(f"import os; os.write(os.open({LAST_PID!r}, os.O_WRONLY), b'9')") in ("EPERM", "EACCES")


@pytest.mark.attack("isolation")
def test_nothing_else_in_proc_or_sys_can_be_opened_for_writing(box: Box) -> None:
    found = box.python(NOTHING_WRITABLE.format(top="/proc", masked=MASKED))
    assert [path for path in found if not path.startswith("/proc/pressure/")] == []  # that takes wishes to be woken
    assert box.python("import os; result = os.listdir('/sys')") == []


@pytest.mark.parametrize(
    "name", ["kcore", "kmsg", "kpagecount", "kpageflags", "kpagecgroup", "slabinfo", "vmallocinfo", "sysrq-trigger"]
)
def test_a_secret_of_the_kernel_cannot_be_read(box: Box, name: str) -> None:
    assert box.refused(f"open('/proc/{name}', 'rb').read(1)") in ("EACCES", "EPERM", "ENOENT")


HOSTS_OWN = (*MASKED, "kpagecount", "slabinfo", "vmallocinfo")
READ_AT_IMPORT = """
    from aenv import register_tool

    def content(name):
        try:
            with open(f"/proc/{name}", "rb") as file:
                return file.read(1).decode("latin-1")
        except OSError:
            return ""

    FOUND = {name: content(name) for name in %r}

    @register_tool
    def found() -> dict:
        return FOUND
"""


@pytest.mark.attack("isolation")
@pytest.mark.parametrize("name", HOSTS_OWN)
def test_information_about_the_host_in_proc_is_hidden(box: Box, name: str) -> None:
    told = f"""
        import os
        path = "/proc/{name}"
        result = ""
        if os.path.isdir(path):
            result = os.listdir(path)
        elif os.path.exists(path) and os.access(path, os.R_OK):
            result = open(path, "rb").read(64).hex()
    """
    assert not box.python(told)
    assert box.shell(f"cat /proc/{name}")["out"] == ""
    assert box.shell(f"umount /proc/{name}")["code"] != 0


@pytest.mark.attack("isolation")
def test_code_in_a_preloaded_parent_reads_none_of_it(tmp_path: Path) -> None:
    project = make_project(tmp_path, READ_AT_IMPORT % (HOSTS_OWN,))
    for _ in range(4):  # the later ones are forks of a process that has loaded the code
        with SyncEnvironment(str(project)) as env:
            assert set(env.call_tool("found", {}).data.values()) == {""}


def test_files_in_proc_that_programs_need_exist(box: Box) -> None:
    for name in ("cpuinfo", "filesystems", "loadavg", "meminfo", "mounts", "self/status", "stat", "sys/kernel/ostype",
                 "sys/vm/overcommit_memory", "uptime", "version"):  # fmt: skip
        assert box.python(f"result = len(open('/proc/{name}').read())") > 0, name


def test_masks_are_mounted_only_over_existing_files(tmp_path: Path) -> None:
    for name, mode in (("cmdline", 0o444), ("kcore", 0o400), ("sysrq-trigger", 0o200)):
        (tmp_path / name).touch(mode)
    (tmp_path / "acpi").mkdir()
    assert [target for _, target, _, _ in rootfs.masks(str(tmp_path))] == ["/proc/acpi", "/proc/cmdline"]


def test_an_instance_cannot_lower_its_oom_score(box: Box) -> None:
    attempt = "import os; os.write(os.open('/proc/self/oom_score_adj', os.O_WRONLY), b'-1000')"
    assert box.refused(attempt, forked=True) in ("EACCES", "EPERM")
    assert box.refused("import os; os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))", forked=True) == "EPERM"
    raised = "import resource as r; s, h = r.getrlimit({0}); r.setrlimit({0}, (h, h + 1 if h > 0 else 2))"
    for limit in ("r.RLIMIT_NOFILE", "r.RLIMIT_CORE"):
        assert box.refused(raised.format(limit), forked=True) in ("EPERM", "ValueError")
