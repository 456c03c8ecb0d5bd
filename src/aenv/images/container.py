"""Create a container: a root file system, users, processes and network of its own.

Unlike a sandbox, which has one user, a container has a range of user ids where the host lets us map one, so that
package managers and servers work in it as on a machine. Root inside is unprivileged outside: created by root, it maps
to a range that no host user is in; created by an ordinary user, to their /etc/subuid range, or else to that user.

``python -m aenv.images.container FD`` receives a `ContainerSpec` through a socket, creates the container, and forks its
init process (`aenv.images.container_init`). Init exits when the socket is closed, and the kernel kills all other
processes of the pid namespace with it: nothing is left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import socket
import sys
from dataclasses import asdict, dataclass, field

from aenv.images import container_init
from aenv.isolation.files import overlay_listing, rootfs
from aenv.isolation.files.trees import remove_tree
from aenv.isolation.forking.zygote_namespaces import explain
from aenv.isolation.kernel import linux
from aenv.isolation.kernel.syscall_plan import SyscallPlan
from aenv.isolation.limits import user_shares
from aenv.isolation.network import policy
from aenv.subprocesses import run

FIRST, COUNT = 0x60000000, 0x10000
"""Range of host user ids that containers of root are mapped to, far away from all assigned ones."""
AENV_FOLDER = "/opt/aenv"
"""Folder in a container for files that aenv adds."""
READ_ONLY = ("bus", "fs", "irq", "sys")
"""Folders of /proc that are read-only even for a container's root, as in Docker."""
_NAMESPACES = linux.CLONE_NEWUSER | linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """Description of a container to create."""

    stage: str
    """Empty folder to mount the parts in; removed when the container is ready."""
    layers: list[str]
    """Folders of the root's overlay, lowest first; their files are owned by user ids of containers."""
    state: str
    """Folder with ``upper`` and ``work``, which receives file changes."""
    host_owned: list[str] = field(default_factory=list)
    """Layers and ``shown`` paths whose files are owned by host users; mounted with mapped ids."""
    shown: dict[str, str] = field(default_factory=dict)
    """Host files and folders to mount read-only, by path inside."""
    files: dict[str, str] = field(default_factory=dict)
    """Small files that replace those of the root, like /etc/hosts: text by path."""
    network: policy.Mode = "loopback"
    hostname: str = "box"
    shares_network: bool = False
    """True to share another container's network: its user and network namespaces are the first descriptors sent with
    the spec."""


def main() -> None:
    """Create a container; the argument is the descriptor of the control socket, which the spec is read from."""
    linux.die_with_parent()
    if os.getppid() == 1:
        sys.exit(0)
    if sys.argv[1] in ("remove", "copy", "list"):
        _run_as_root(*sys.argv[1:])
        return
    control = socket.socket(fileno=int(sys.argv[1]))
    message, fds, _, _ = socket.recv_fds(control, container_init.MESSAGE, container_init.MAX_FDS)
    spec = ContainerSpec(**json.loads(message))
    try:
        code = _make(spec, control, fds)
    except OSError as error:
        control.send(json.dumps({"op": "failed", "error": explain(error)}).encode())
        code = 1
    sys.exit(code)


def _make(spec: ContainerSpec, control: socket.socket, fds: list[int]) -> int:
    """Create the container and wait for its init process; return its exit code."""
    privileged = os.geteuid() == 0
    with contextlib.suppress(OSError):
        os.setsid()
    with contextlib.suppress(OSError):
        linux.leave_session_keyring()
    if privileged:
        linux.unshare(linux.CLONE_NEWNS)
        _stage(spec, privileged=True)
    namespaces = _NAMESPACES if spec.network == "host" or spec.shares_network else _NAMESPACES | linux.CLONE_NEWNET
    if spec.shares_network:
        users, net = fds.pop(0), fds.pop(0)
        if not privileged:  # an ordinary user may enter a network namespace only with its owning user namespace
            linux.setns(users, linux.CLONE_NEWUSER)
            namespaces &= ~linux.CLONE_NEWUSER
        linux.setns(net, linux.CLONE_NEWNET)
        for fd in (users, net):
            os.close(fd)
    mapped, map_now = os.pipe()
    child = linux.fork_into(namespaces)
    if child == 0:
        linux.die_with_parent()
        os.close(map_now)
        container_init.run(control, lambda: _enter(spec, fds, mapped, privileged=privileged))
    os.close(mapped)
    for fd in fds:
        os.close(fd)
    if namespaces & linux.CLONE_NEWUSER:
        _map_users(child, privileged=privileged)
    control.send(json.dumps({"op": "made", "pid": child}).encode())
    control.close()
    os.write(map_now, b"1")
    os.close(map_now)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) and 1


def _run_as_root(what: str, path: str, target: str = "") -> None:
    """Remove, copy or list a tree that containers of this user have written, as the root of their user namespace."""
    if what == "list" and os.geteuid() == 0:
        overlay_listing.write(path)
        return
    mapped, map_now = os.pipe()
    child = linux.fork_into(linux.CLONE_NEWUSER)
    if child == 0:
        os.close(map_now)
        os.read(mapped, 1)
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        if what == "copy":
            os.execvp("cp", ["cp", "-a", "--reflink=auto", path, target])
        if what == "list":
            overlay_listing.write(path)
            os._exit(0)
        remove_tree(path)
        os._exit(0)
    _map_users(child, privileged=os.geteuid() == 0)
    os.close(map_now)
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


def _map_users(child: int, *, privileged: bool) -> None:
    """Write the user and group id maps of the child's user namespace."""
    if privileged:
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{child}/{name}", "w") as file:
                file.write(f"0 {FIRST} {COUNT}")
        return
    own = {"uid": os.getuid(), "gid": os.getgid()}
    ranges = {kind: sub_range(kind) for kind in own}
    if all(ranges.values()):
        for kind, (first, count) in ((kind, found) for kind, found in ranges.items() if found):
            command = [f"new{kind}map", str(child), "0", str(own[kind]), "1", "1", str(first), str(count)]
            done = run(command)
            if not done.ok:
                raise OSError(1, f"{command[0]}: {done.stderr.strip()}")
        return
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {own['uid']} 1"), ("gid_map", f"0 {own['gid']} 1")):
        with open(f"/proc/{child}/{name}", "w") as file:
            file.write(text)


def sub_range(kind: str) -> tuple[int, int] | None:
    """Return this user's range in /etc/subuid (``uid``) or /etc/subgid (``gid``); None without one or newuidmap."""
    if not (shutil.which("newuidmap") and shutil.which("newgidmap")):
        return None
    try:
        names = {str(os.getuid()), pwd.getpwuid(os.getuid()).pw_name}
        with open(f"/etc/sub{kind}") as file:
            rows = [line.strip().split(":") for line in file if line.count(":") == 2]
    except (OSError, KeyError):
        return None
    found = [(int(first), int(count)) for name, first, count in rows if name in names]
    return max(found, key=lambda each: each[1]) if found else None


def has_user_range() -> bool:
    """Return True if containers of this user have more than one user id."""
    return os.geteuid() == 0 or (sub_range("uid") is not None and sub_range("gid") is not None)


def root_owner() -> tuple[int, int]:
    """Return the host user and group ids of a container's root."""
    return (FIRST, FIRST) if os.geteuid() == 0 else (os.getuid(), os.getgid())


def _stage(spec: ContainerSpec, *, privileged: bool) -> None:
    """Mount all parts in one folder, where the container's root can reach them whatever their parents' permissions."""
    stage = spec.stage
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("aenv", stage, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=16m,mode=755")
    parts = {**{f"l{index}": path for index, path in enumerate(spec.layers)}, "state": spec.state}
    parts |= {f"s{index}": path for index, path in enumerate(spec.shown.values())}
    for name in ("root", "files"):
        os.mkdir(f"{stage}/{name}")
    for name, path in parts.items():
        if os.path.isdir(path):
            os.mkdir(f"{stage}/{name}")
        else:
            open(f"{stage}/{name}", "w").close()
        if path in spec.host_owned and privileged:
            linux.bind_as(path, f"{stage}/{name}", 0, FIRST, COUNT)
        elif name.startswith("s") and name != "state":
            linux.bind(path, f"{stage}/{name}")
        else:
            linux.mount(path, f"{stage}/{name}", flags=linux.MS_BIND)
        if name.startswith("s") and name != "state":
            linux.make_read_only(f"{stage}/{name}")
    for index, text in enumerate(spec.files.values()):
        path = f"{stage}/files/{index}"
        with open(path, "w") as file:
            file.write(text)
        if privileged:
            os.chown(path, FIRST, FIRST)


def _enter(spec: ContainerSpec, fds: list[int], mapped: int, *, privileged: bool) -> None:
    """Become the container's root user in its root file system; called in the init process."""
    if not os.read(mapped, 1):
        os._exit(1)  # mapping user ids has failed, and the parent has reported it
    os.close(mapped)
    with contextlib.suppress(OSError):
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    linux.set_dumpable(True)
    linux.die_with_parent()  # changing the user id has cleared it
    user_shares.apply_limits(user_shares.INSTANCE)
    channel = fds.pop(0) if spec.network == "egress" and not spec.shares_network else None
    for fd in fds:
        os.write(fd, b"0")
        os.close(fd)
    linux.unshare(linux.CLONE_NEWCGROUP)
    if not privileged:
        _stage(spec, privileged=False)
    os.chdir(spec.stage)
    lowers = ":".join(f"l{index}" for index in reversed(range(len(spec.layers))))
    linux.mount("overlay", "root", "overlay", 0, f"lowerdir={lowers},upperdir=state/upper,workdir=state/work,userxattr")
    _populate(spec, f"{spec.stage}/root")
    linux.pivot_root(f"{spec.stage}/root")
    socket.sethostname(spec.hostname)
    if not spec.shares_network:
        plan = SyscallPlan()
        listener = policy.configure(plan, spec.network)
        results = plan.run()
        if listener is not None and channel is not None:
            policy.send_listener(results[listener.call], channel)
    if channel is not None:
        os.close(channel)


def _populate(spec: ContainerSpec, root: str) -> None:
    """Mount devices, /proc, /sys, and the files and folders of the spec."""
    for path in ("proc", "sys", "dev", "tmp", "run", AENV_FOLDER[1:]):
        os.makedirs(f"{root}/{path}", exist_ok=True)
    os.chmod(f"{root}/tmp", 0o1777)
    linux.mount("dev", f"{root}/dev", "tmpfs", linux.MS_NOSUID, "size=64k,mode=755")
    rootfs.make_device_places(root)
    os.mkdir(f"{root}/dev/shm")
    linux.mount("shm", f"{root}/dev/shm", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=1g,mode=1777")
    own = SyscallPlan()
    rootfs.mount_devpts(own, root)
    own.run()
    for name in rootfs.DEVICES:
        linux.bind(f"/dev/{name}", f"{root}/dev/{name}")
    for source, target, kind, flags in rootfs.PROC:
        linux.mount(source, root + target, kind, flags)
    for path in (f"{root}/proc/{name}" for name in READ_ONLY):
        if os.path.isdir(path):
            linux.bind(path, path)
            linux.make_read_only(path)
    if spec.network != "host" and not spec.shares_network:
        with contextlib.suppress(OSError):
            linux.mount("sysfs", f"{root}/sys", "sysfs", linux.MS_RDONLY | rootfs.PROC_FLAGS)
    linux.mount("ours", root + AENV_FOLDER, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=1m,mode=755")
    sources = [f"s{index}" for index in range(len(spec.shown))]
    for name, path in zip(sources, spec.shown, strict=True):
        _bind_inside(f"{spec.stage}/{name}", root, path)
    for index, path in enumerate(spec.files):
        _bind_inside(f"{spec.stage}/files/{index}", root, path)


def _bind_inside(source: str, root: str, path: str) -> None:
    """Bind-mount a file or folder at a path in the root. A symbolic link there is replaced: it could lead anywhere."""
    folder, name = os.path.split(path)
    target = os.path.join(container_init.resolve_in_root(root, folder, make=True), name)
    if os.path.islink(target):
        os.unlink(target)
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    elif not os.path.exists(target):
        open(target, "w").close()
    linux.bind(source, target)


def spec_message(spec: ContainerSpec) -> bytes:
    """Encode a spec as `main` reads it."""
    return json.dumps(asdict(spec)).encode()


if __name__ == "__main__":
    main()
