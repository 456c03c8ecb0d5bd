"""Attacks that any program in a sandbox can try: run by `run.py` inside each sandbox, with the standard library alone.

Prints one JSON object: for each kind, for each attack, whether it was held, and what came of it. An attack is held when
what it asks for is refused, or shows nothing of the host. Each runs in a process of its own.
"""

import contextlib
import ctypes
import errno
import json
import os
import signal
import socket
import struct
import sys

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
KINDS = {}


class Refused(Exception):
    """The attack was held; the message says how."""


def attack(kind, name):
    """Declare one. It raises OSError or Refused where it is held, and returns what it got where it is not."""

    def add(function):
        KINDS.setdefault(kind, {})[name] = function
        return function

    return add


def call(number, *arguments):
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


# --- system calls that reach large, rarely needed or global parts of the kernel: the arguments are such that a call
# that is let through fails for another reason, or does no harm

HARMLESS = (errno.EPERM, errno.ENOSYS, errno.EACCES)
SYSTEM_CALLS = {
    "acct": 163, "add_key": 248, "adjtimex (set)": 159, "bpf": 321, "clock_settime": 227, "create_module": 174,
    "delete_module": 176, "fanotify_init": 300, "finit_module": 313, "fsconfig": 431, "fsmount": 432, "fsopen": 430,
    "fspick": 433, "init_module": 175, "io_uring_enter": 426, "io_uring_register": 427, "io_uring_setup": 425,
    "ioperm": 173, "iopl": 172, "kcmp": 312, "kexec_file_load": 320, "kexec_load": 246, "keyctl": 250,
    "lookup_dcookie": 212, "mbind": 237, "memfd_secret": 447, "migrate_pages": 256, "mount": 165, "mount_setattr": 442,
    "move_mount": 429, "move_pages": 279, "name_to_handle_at": 303, "nfsservctl": 180, "open_by_handle_at": 304,
    "open_tree": 428, "perf_event_open": 298, "pidfd_getfd": 438, "pivot_root": 155, "process_madvise": 440,
    "process_vm_readv": 310, "process_vm_writev": 311, "ptrace": 101, "quotactl": 179, "reboot": 169,
    "request_key": 249, "setdomainname": 171, "sethostname": 170, "setns": 308, "settimeofday": 164,
    "set_mempolicy": 238, "swapoff": 168, "swapon": 167, "syslog": 103, "umount2": 166, "unshare (user)": 272,
    "userfaultfd": 323, "vhangup": 153, "vmsplice": 278,
}  # fmt: skip
PAST_THE_FILTER = {
    "mount": (b"none", b"/tmp", b"tmpfs"), "keyctl": (0, -3), "add_key": (b"user", b"x", b"y", 1, -3),
    "io_uring_setup": (1, ctypes.create_string_buffer(120)), "sethostname": (b"x", 1), "setdomainname": (b"x", 1),
    "unshare (user)": (0x10000000,), "userfaultfd": (1,), "memfd_secret": (0,), "syslog": (10,),
    "perf_event_open": (ctypes.create_string_buffer(struct.pack("II", 1, 112) + bytes(104), 112), 0, -1, -1, 0),
    "bpf": (0, ctypes.create_string_buffer(struct.pack("IIII", 2, 4, 4, 1) + bytes(112), 128), 128),
    "process_vm_readv": (os.getpid(), 0, 0, 0, 0, 0), "kcmp": (os.getpid(), os.getpid(), 0, 0, 0),
    "ptrace": (0,), "request_key": (b"user", b"x", None, -3), "set_mempolicy": (0, None, 0),
    "name_to_handle_at": (-100, b"/", ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128)),
                          ctypes.byref(ctypes.c_int()), 0),
    "mbind": (0, 0, 0, None, 0, 0), "move_pages": (0, 0, None, None, None, 0), "vmsplice": (1, None, 0, 0),
    "fanotify_init": (0, 0), "fsopen": (b"tmpfs", 0), "open_tree": (-100, b"/tmp", 1),
}  # fmt: skip
for _name, _number in SYSTEM_CALLS.items():

    def _try(name=_name, number=_number):
        try:
            return f"result {call(number, *PAST_THE_FILTER.get(name, (0, 0, 0, 0, 0)))}"
        except OSError as error:
            if error.errno in HARMLESS:
                raise
            return f"let through: {error.strerror}"

    attack("system calls", _name)(_try)


# --- sockets

for _name, _arguments in {
    "vsock": (40, 1, 0), "packet": (17, 3, 768), "raw": (2, 3, 1), "alg": (38, 5, 0), "mptcp": (2, 1, 262),
    "sctp": (2, 1, 132), "netlink audit": (16, 3, 9), "netlink netfilter": (16, 3, 12), "netlink generic": (16, 3, 16),
    "bluetooth": (31, 3, 1), "can": (29, 3, 1), "rds": (21, 5, 0), "tipc": (30, 1, 0), "xdp": (44, 3, 0),
    "kcm": (41, 2, 0), "smc": (43, 1, 0),
}.items():  # fmt: skip

    def _open(arguments=_arguments):
        socket.socket(*arguments).close()
        return "opened"

    attack("sockets", _name)(_open)


@attack("network", "an interface besides the loopback")
def _interfaces():
    names = [name for _, name in socket.if_nameindex() if name != "lo"]
    if not names:
        raise Refused("none")
    return names


@attack("network", "the host's services on its loopback")
def _loopback():
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 2):
        return "connected"


@attack("network", "abstract unix sockets of the host")
def _abstract():
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"\0aenv-attacks-{sys.argv[1]}")
        return "connected"


# --- what /proc and /sys tell

for _path in (
    "cmdline", "config.gz", "interrupts", "iomem", "ioports", "kallsyms", "kcore", "keys", "key-users", "kmsg",
    "locks", "modules", "partitions", "sched_debug", "schedstat", "softirqs", "timer_list", "zoneinfo", "vmallocinfo",
    "slabinfo",
):  # fmt: skip

    def _read(path=f"/proc/{_path}"):
        with open(path, "rb") as file:
            found = file.read(4096)
        if not found.strip(b"\0\n 0123456789:"):
            raise Refused("empty")
        return f"{len(found)} bytes"

    attack("what the host is", _path)(_read)


@attack("what the host is", "its processes")
def _processes():
    seen = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    if len(seen) < 40 and not any(pid == int(sys.argv[2]) for pid in seen if pid > 1000):
        raise Refused(f"{len(seen)} processes, all its own")
    return f"{len(seen)} processes"


@attack("what the host is", "disks and devices in /sys")
def _sys():
    found = os.listdir("/sys/block")
    if not found:
        raise Refused("none")
    return found


@attack("what the host is", "home folders and keys")
def _home():
    found = [p for p in ("/root/.ssh", "/root/.gitconfig", "/etc/shadow", "/home") if os.path.exists(p)]
    found = [p for p in found if (os.path.isdir(p) and set(os.listdir(p)) - {"env"}) or os.path.isfile(p)]
    if not found:
        raise Refused("none")
    return found


for _path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/kernel/hostname",
              "/sys/kernel/uevent_helper", "/proc/sys/vm/drop_caches", "/proc/sys/kernel/modprobe"):  # fmt: skip

    def _write(path=_path):
        os.close(os.open(path, os.O_WRONLY))
        return "opened for writing"

    attack("settings of the kernel", _path)(_write)


# --- rights


def _own_rights():
    """Ask the kernel and not /proc, which a sandbox may not have."""
    header, found = struct.pack("=Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
    if libc.syscall(125, ctypes.create_string_buffer(header), found):
        raise OSError(ctypes.get_errno(), "capget")
    words = struct.unpack("=6I", found.raw)
    bounding = sum(1 << number for number in range(64) if libc.prctl(23, number, 0, 0, 0) == 1)
    return {
        "CapEff": f"{words[0] | words[3] << 32:x}", "CapPrm": f"{words[1] | words[4] << 32:x}",
        "CapBnd": f"{bounding:x}", "NoNewPrivs": str(libc.prctl(39, 0, 0, 0, 0)),
    }  # fmt: skip


STATUS = _own_rights()


@attack("rights", "any capability")
def _capabilities():
    if int(STATUS["CapEff"], 16) == 0 and int(STATUS["CapPrm"], 16) == 0:
        raise Refused("none")
    return STATUS["CapEff"]


@attack("rights", "a capability that it may have again")
def _bounding():
    if int(STATUS["CapBnd"], 16) == 0:
        raise Refused("none")
    return STATUS["CapBnd"]


@attack("rights", "new privileges by setuid programs")
def _privileges():
    if STATUS.get("NoNewPrivs", "0") == "1":
        raise Refused("no new privileges")
    return "possible"


@attack("rights", "root")
def _root():
    if os.geteuid() != 0:
        raise Refused(f"user {os.geteuid()}")
    return "user 0"


@attack("rights", "a device")
def _device():
    os.mknod("/tmp/device", 0o600 | 0o060000, os.makedev(7, 0))
    with open("/tmp/device", "rb") as file:
        return f"opened: {len(file.read(1))}"


@attack("rights", "another root")
def _chroot():
    os.chroot("/tmp")
    return "changed"


@attack("rights", "a namespace of its own")
def _namespace():
    pid = call(56, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "made"


@attack("rights", "typing into the terminal that started it")
def _tiocsti():
    import fcntl
    import pty

    pid, master = pty.fork()
    if pid == 0:
        try:
            fcntl.ioctl(0, 0x5412, b"x")
            os._exit(0)
        except OSError as error:
            os._exit(error.errno or 1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(master)
    if code:
        raise OSError(code, os.strerror(code))
    return "typed"


for _path in ("/usr/bin/aenv-attack", "/etc/aenv-attack", "/lib/aenv-attack", "/usr/lib/python3/aenv-attack"):

    def _plant(path=_path):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
        os.unlink(path)
        return "written"

    attack("rights", f"writing {_path}")(_plant)


# --- limits


@attack("limits", "2,000 processes")
def _processes_at_once():
    made = []
    try:
        for _ in range(2000):
            pid = os.fork()
            if pid == 0:
                signal.pause()
                os._exit(0)
            made.append(pid)
    finally:
        for pid in made:
            os.kill(pid, signal.SIGKILL)
        for pid in made:
            os.waitpid(pid, 0)
    return f"{len(made)} processes"


@attack("limits", "4 GiB of memory")
def _memory():
    blocks = []
    for _ in range(64):
        blocks.append(bytearray(b"x") * (64 << 20))
    return f"{len(blocks) * 64} MiB"


@attack("limits", "a core dump handed to the host")
def _core():
    import resource

    if resource.getrlimit(resource.RLIMIT_CORE)[1] in (0, 1):
        raise Refused("no core dumps")
    return "possible"


def run(function):
    """In a process of its own: what it came to."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        held, said = False, ""
        try:
            said = str(function())
        except (OSError, Refused, MemoryError, ValueError) as error:
            held, said = True, f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            os.write(theirs, json.dumps([held, said[:200]]).encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as file:
        said = file.read()
    status = os.waitpid(pid, 0)[1]
    if said:
        return json.loads(said)
    return [True, f"killed by signal {os.WTERMSIG(status)}"] if os.WIFSIGNALED(status) else [True, "ended"]


if __name__ == "__main__":
    print(
        json.dumps({kind: {name: run(function) for name, function in which.items()} for kind, which in KINDS.items()})
    )
