"""Landlock: a process gives up access to files, TCP ports and other processes, without any right or namespace.

A *ruleset* lists what stays allowed; `restrict` puts the calling thread, and all that it starts from then on, into a
new *domain* with these rules. Domains nest: a process is bound by those of all its ancestors. No domain can be left.
"""

from __future__ import annotations

import ctypes
import os
import struct

from aenv.isolation.kernel import linux

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = (1 << bit for bit in range(4))
_TRUNCATE, _IOCTL_DEVICE = 1 << 14, 1 << 15
ALL_FILES = (1 << 16) - 1
"""Every right over files that ABI 5 knows."""
READ = EXECUTE | READ_FILE | READ_DIR
WRITE = ALL_FILES
DEVICE = READ_FILE | WRITE_FILE | _TRUNCATE | _IOCTL_DEVICE
_OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE | _IOCTL_DEVICE
"""Rights that a rule for a file, and not for a folder, can grant."""
_ALL_TCP = 0x3
_SCOPES = 0x3
"""Abstract unix sockets and signals: only within the domain, and in those nested in it."""
LEAST_ABI = 6
"""The first version with scopes (Linux 6.12): before it, nothing keeps processes of one user from each other's
signals."""
_VERSION, _PATH_BENEATH = 1, 1


def abi() -> int:
    """Return the version of Landlock that this kernel and this container offer; 0: none."""
    found = linux.system_call(linux.number("landlock_create_ruleset"), 0, 0, _VERSION)
    return max(found, 0)


class Ruleset:
    """Rules of a domain to be: what is not allowed by one of them is refused."""

    def __init__(self, *, files: bool = True, tcp: bool = True) -> None:
        """``files``: govern access to files; without, the domain only keeps signals and abstract sockets inside.
        ``tcp``: allow no TCP port.
        """
        handled = struct.pack("=QQQ", ALL_FILES if files else 0, _ALL_TCP if files and tcp else 0, _SCOPES)
        self.fd = _call("landlock_create_ruleset", _address(handled), len(handled), 0)

    def allow(self, place: int, rights: int) -> None:
        """Allow rights over a file, or over a folder and all below it. ``place``: a descriptor of it."""
        rule = struct.pack("=Qi", rights, place)
        _call("landlock_add_rule", self.fd, _PATH_BENEATH, _address(rule), 0)

    def restrict(self) -> None:
        """Enter a new domain with these rules, for good. Needs no_new_privs, which must be set before."""
        _call("landlock_restrict_self", self.fd, 0)
        os.close(self.fd)


def open_place(path: str) -> tuple[int, int]:
    """Return a descriptor for rules about a path, and the rights that a rule about it can grant.

    Raises:
        OSError: there is no such path.
    """
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    is_folder = os.path.isdir(f"/proc/self/fd/{fd}")
    return fd, ALL_FILES if is_folder else _OF_A_FILE


_kept: list[ctypes.Array[ctypes.c_char]] = []


def _address(data: bytes) -> int:
    buffer = ctypes.create_string_buffer(data, len(data))
    _kept[:] = [buffer]  # alive until the next call
    return ctypes.addressof(buffer)


def _call(name: str, *arguments: int) -> int:
    result = linux.system_call(linux.number(name), *arguments)
    if result < 0:
        raise OSError(-result, f"{name}: {os.strerror(-result)}")
    return result
