"""Become a sandbox without namespaces: give up every right by Landlock and seccomp, then run foreign code."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

from aenv.isolation.confined.instance_folders import HOME, TEMPORARY, InstanceFolder, SharedFolder
from aenv.isolation.files import private_folder, rootfs
from aenv.isolation.forking.sandbox import Sandbox, load, read_parameters
from aenv.isolation.forking.zygote_spec import ZygoteSpec, parameters_file
from aenv.isolation.kernel import landlock, linux
from aenv.isolation.limits.cgroups import limit_processes_of_user, set_resource_limits

Place = tuple[int, int]
"""A descriptor of a file or folder, and the rights that sandboxes have over it and all below."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_ETC = ("/etc/nsswitch.conf", "/etc/hosts", "/etc/resolv.conf")
"""Files that, beside `rootfs.ETC`, a sandbox with a network needs."""


def open_places(spec: ZygoteSpec, shared: SharedFolder, interpreter: list[str]) -> list[Place]:
    """Open everything that all sandboxes of a zygote may read. ``interpreter``: `rootfs.interpreter_paths`.

    Raises:
        OSError: this user may not read the interpreter, or what sandboxes may read contains their own folders.
    """
    hidden = next((path for path in interpreter if not os.access(path, os.R_OK)), None)
    if hidden is not None:
        raise OSError(
            f"instances run as a user of their own, who may not read {hidden}: run aenv with a Python that every user "
            "may read, or as an ordinary user"
        )
    readable = [*rootfs.SYSTEM, *rootfs.ETC, *interpreter, *spec.shown, shared.project]
    readable += _ETC if spec.host_network else ()
    inside = next((path for path in readable if rootfs.is_below(os.path.realpath(shared.path), [path])), None)
    if inside is not None:
        raise OSError(f"the temporary folder lies in {inside}, which instances may read; set TMPDIR to another one")
    places = []
    for path, rights in (
        *((path, landlock.READ) for path in readable),
        *((path, landlock.DEVICE) for path in _DEVICES),
    ):
        with contextlib.suppress(FileNotFoundError, PermissionError):
            fd, possible = landlock.open_place(path)
            places.append((fd, rights & possible))
    return places


class ConfinedSandbox(Sandbox):
    """A sandbox without namespaces, in the process that becomes it."""

    def __init__(
        self, spec: ZygoteSpec, program: bytes, shared: SharedFolder, folder: InstanceFolder, places: Sequence[Place]
    ) -> None:
        self._spec = spec
        self._program = program
        self._shared = shared
        self._folder = folder
        self._places = places
        self._code = 1
        self._status = -1
        self._egress = -1

    def _leave_host(self, keep: list[int]) -> None:
        """Leave the zygote's session, and everything but the sandbox's own files."""
        linux.die_with_parent()
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        linux.adopt_orphans()
        os.umask(0o022)
        self._folder.fill(self._shared.project)
        linux.set_dumpable(True)  # the zygote is not, and its /proc/self would belong to root
        own_process = os.open("/proc/self/", os.O_PATH | os.O_CLOEXEC)  # open for good: a rule is about an open folder
        self._enter_domain(own_process)
        os.chdir(self._folder.app)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        for name in os.listdir(f"/proc/{os.getpid()}/fd"):
            if int(name) not in (0, 1, 2, own_process, *keep):
                with contextlib.suppress(OSError):
                    os.close(int(name))

    def _enter_domain(self, own_process: int) -> None:
        rules = landlock.Ruleset(tcp=not self._spec.host_network)
        for fd, rights in self._places:
            rules.allow(fd, rights)
        rules.allow(own_process, landlock.READ | landlock.WRITE_FILE)
        own, _ = landlock.open_place(self._folder.path)
        rules.allow(own, landlock.WRITE)
        os.close(own)
        rules.restrict()

    def _go(self) -> None:
        parameters = self._located(read_parameters(self._parameters))
        if not self._fork:
            variables = private_folder.pass_to_exec()  # before the filter, which may refuse memfd_create
            self._parameters = parameters_file(parameters)
            self._give_up_rights()
            self._start_program(variables)
        self._give_up_rights()
        self._code = load(self._spec.entry)(
            socket.socket(fileno=self._listener), json.dumps(parameters).encode(), self._report
        )

    def _located(self, parameters_json: bytes) -> dict[str, Any]:
        """Return the parameters with the paths of this sandbox, in place of those that it would have in namespaces."""
        given: dict[str, Any] = json.loads(parameters_json)
        return {
            **given,
            "path": self._folder.app + given["path"].removeprefix(rootfs.PROJECT),
            "directory": self._folder.app,
            "snapshot": self._shared.project,
            "home": f"{self._folder.path}/{HOME}",
            "temporary": f"{self._folder.path}/{TEMPORARY}",
        }

    def _give_up_rights(self, *, to_be_forked: bool = False) -> None:
        for fd in self._cgroups:
            os.write(fd, b"0")
            os.close(fd)
        for output in (1, 2):
            os.dup2(self._log, output)
        os.close(self._log)
        for fd in (self._listener, self._status):
            os.set_inheritable(fd, False)
        if not self._cgroups:
            limit_processes_of_user()
        set_resource_limits(self._limits, alone=not self._cgroups)
        linux.load_seccomp(self._program)
        gc.enable()
        sys.path[:0] = self._spec.shown  # from here on foreign packages can be imported

    def _report(self, message: dict[str, Any] | bytes) -> None:
        if isinstance(message, dict) and "error" in message:
            text = str(message["error"])
            for place in (self._folder.app, self._shared.project):
                text = text.replace(f"{place}/", f"{rootfs.PROJECT}/")
            message = {**message, "error": text}
        super()._report(message)
