"""The system-call filter: what a sandbox has no business to ask the kernel for is refused.

Capabilities and namespaces refuse most of it already; the filter is there for what they do not cover (vsock leaves
a network namespace, io_uring walks around filters) and for the next hole.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Collection

from aenv.isolation.linux import MACHINE

_X86_64 = {
    "acct": 163, "add_key": 248, "adjtimex": 159, "bpf": 321, "chroot": 161, "clock_adjtime": 305,
    "clock_settime": 227, "create_module": 174, "delete_module": 176, "fanotify_init": 300, "finit_module": 313,
    "fsconfig": 431, "fsmount": 432, "fsopen": 430, "fspick": 433, "init_module": 175, "io_uring_enter": 426,
    "io_uring_register": 427, "io_uring_setup": 425, "ioperm": 173, "iopl": 172, "kcmp": 312, "kexec_file_load": 320,
    "kexec_load": 246, "keyctl": 250, "lookup_dcookie": 212, "migrate_pages": 256, "modify_ldt": 154, "mount": 165,
    "mount_setattr": 442, "move_mount": 429, "move_pages": 279, "name_to_handle_at": 303, "nfsservctl": 180,
    "open_by_handle_at": 304, "open_tree": 428, "open_tree_attr": 467, "perf_event_open": 298, "pidfd_getfd": 438,
    "pivot_root": 155, "process_madvise": 440, "process_vm_readv": 310, "process_vm_writev": 311, "ptrace": 101,
    "quotactl": 179, "quotactl_fd": 443, "reboot": 169, "request_key": 249, "setdomainname": 171, "sethostname": 170,
    "setns": 308, "settimeofday": 164, "swapoff": 168, "swapon": 167, "syslog": 103, "umount2": 166, "unshare": 272,
    "uselib": 134, "userfaultfd": 323, "vhangup": 153,
}  # fmt: skip
_AARCH64 = {
    "acct": 89, "add_key": 217, "adjtimex": 171, "bpf": 280, "chroot": 51, "clock_adjtime": 266, "clock_settime": 112,
    "delete_module": 106, "fanotify_init": 262, "finit_module": 273, "fsconfig": 431, "fsmount": 432, "fsopen": 430,
    "fspick": 433, "init_module": 105, "io_uring_enter": 426, "io_uring_register": 427, "io_uring_setup": 425,
    "kcmp": 272, "kexec_file_load": 294, "kexec_load": 104, "keyctl": 219, "lookup_dcookie": 18, "migrate_pages": 238,
    "mount": 40, "mount_setattr": 442, "move_mount": 429, "move_pages": 239, "name_to_handle_at": 264,
    "nfsservctl": 42, "open_by_handle_at": 265, "open_tree": 428, "open_tree_attr": 467, "perf_event_open": 241,
    "pidfd_getfd": 438, "pivot_root": 41, "process_madvise": 440, "process_vm_readv": 270, "process_vm_writev": 271,
    "ptrace": 117, "quotactl": 60, "quotactl_fd": 443, "reboot": 142, "request_key": 218, "setdomainname": 162,
    "sethostname": 161, "setns": 268, "settimeofday": 170, "swapoff": 225, "swapon": 224, "syslog": 116,
    "umount2": 39, "unshare": 97, "userfaultfd": 282, "vhangup": 58,
}  # fmt: skip
_ARCHITECTURES = {
    # audit number, denied, clone, clone3, socket
    "x86_64": (0xC000003E, _X86_64, 56, 435, 41),
    "aarch64": (0xC00000B7, _AARCH64, 220, 435, 198),
}
_X32_BIT = 0x40000000
_CLONE_NEWCGROUP = 0x02000000
_CLONE_NAMESPACES = 0x7E020000  # every CLONE_NEW* flag that clone takes
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)

_LOAD, _JUMP_EQ, _JUMP_SET, _JUMP_GE, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _KILL, _ERRNO, _TRACE = 0x7FFF0000, 0x80000000, 0x00050000, 0x7FF00000
_NR, _ARCH, _ARG0 = 0, 4, 16  # offsets in struct seccomp_data


def supported() -> bool:
    """Whether there is a filter for this machine's processor."""
    return MACHINE in _ARCHITECTURES


def program(*, movable: bool = False, allowed: Collection[str] = ()) -> bytes:
    """The filter, as the kernel takes it. ``movable``: who traces the process may have it enter other namespaces, make
    one of control groups, and mount; where nobody traces it, there are no such system calls. ``allowed``: system calls
    that pass all the same.
    """
    audit, denied, clone, clone3, open_socket = _ARCHITECTURES[MACHINE]
    refuse = _ERRNO | errno.EPERM
    ask = _TRACE if movable else refuse
    asked = (denied["setns"], denied["mount"])
    code = [
        _op(_LOAD, _ARCH), _op(_JUMP_EQ, audit, 1, 0), _op(_RETURN, _KILL),
        _op(_LOAD, _NR), _op(_JUMP_GE, _X32_BIT, 0, 1), _op(_RETURN, _KILL),
    ]  # fmt: skip
    if "unshare" not in allowed:
        code += [
            _op(_JUMP_EQ, denied["unshare"], 0, 4), _op(_LOAD, _ARG0), _op(_JUMP_EQ, _CLONE_NEWCGROUP, 0, 1),
            _op(_RETURN, ask), _op(_RETURN, refuse),
        ]  # fmt: skip
    for number in sorted(number for name, number in denied.items() if name not in allowed):
        code += [_op(_JUMP_EQ, number, 0, 1), _op(_RETURN, ask if number in asked else refuse)]
    # clone3 hides its flags behind a pointer; glibc falls back to clone when there is none.
    code += [_op(_JUMP_EQ, clone3, 0, 1), _op(_RETURN, _ERRNO | errno.ENOSYS)]
    code += [
        _op(_JUMP_EQ, clone, 0, 4), _op(_LOAD, _ARG0), _op(_JUMP_SET, _CLONE_NAMESPACES, 0, 1),
        _op(_RETURN, ask), _op(_RETURN, _ALLOW),
    ]  # fmt: skip
    code += [_op(_JUMP_EQ, open_socket, 0, len(_FAMILIES) + 3), _op(_LOAD, _ARG0)]
    for place, family in enumerate(_FAMILIES):
        code.append(_op(_JUMP_EQ, family, len(_FAMILIES) - place, 0))
    code += [_op(_RETURN, _ERRNO | errno.EAFNOSUPPORT), _op(_RETURN, _ALLOW)]
    code.append(_op(_RETURN, _ALLOW))
    return b"".join(code)


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
