"""The gVisor engine: sandboxes with a kernel of their own in user space, by ``runsc``, where it is installed.

Stronger than the native engine, since little of the host's kernel is in reach, and slower: each sandbox starts Python
for itself. It sees the same programs and a copy of the project; what it changes lives in its own memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import IO, Any, Self

from aenv.engines import package_layers
from aenv.engines.base import Capabilities, EngineOptions, Resource, SandboxRef, SandboxSpec
from aenv.engines.process import ProcessEngine
from aenv.engines.taken_sockets import take_socket
from aenv.errors import LoadError, Unavailable
from aenv.isolation.files import private_folder, rootfs
from aenv.isolation.files.trees import remove_tree
from aenv.isolation.kernel import linux
from aenv.isolation.limits.cgroups import Cgroup, Cgroups, group_name
from aenv.subprocesses import run, run_async
from aenv.tracing.logging import getLogger

log = getLogger("gvisor")

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SOCKETS = "/run/aenv"
_WITHHELD = "/.withheld"
_LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", ".git", ".venv", "venv", "node_modules", ".pytest_cache", ".mypy_cache"
)


class GvisorEngine(ProcessEngine):
    """A ``runsc run`` for each sandbox. It ends with the engine, and the sandbox with it."""

    capabilities = Capabilities(
        networks=frozenset(("loopback",)), resources=frozenset(("cpu", "memory")), storage_media=frozenset(("memory",))
    )

    def __init__(self, folder: Path, *, group: str = "") -> None:
        super().__init__(folder)
        self._runsc = find_runsc()
        self._cgroups = Cgroups(group or group_name())
        self._groups: dict[str, Cgroup] = {}

    def adjustable(self) -> frozenset[Resource]:
        """Return the resources that there is a control group for."""
        return frozenset(name for name in self.capabilities.resources if name in self._cgroups.controllers)

    @classmethod
    def create(cls, folder: Path, options: EngineOptions) -> Self:
        return cls(folder, group=options.group)

    @classmethod
    def check_host(cls) -> str:
        return find_runsc()

    def _warn(self) -> None:
        """Log nothing: these sandboxes are isolated."""

    def _socket(self, name: str) -> Path:
        return self._place(name) / "own"

    def _place(self, name: str) -> Path:
        return self._folder / name

    async def start(self, spec: SandboxSpec) -> SandboxRef:
        try:
            ref = await super().start(spec)
            try:
                if not take_socket(self._place(ref.id) / "s" / "s", self._socket(ref.id)):
                    raise LoadError("its code has removed its socket")
            except LoadError:
                await self.stop(ref)
                raise
            return ref
        except LoadError as error:
            raise LoadError(error.message.replace(f"{rootfs.PROJECT}/", f"{spec.project}/")) from None

    async def _launch(
        self, name: str, spec: SandboxSpec, token: str, log_file: IO[bytes]
    ) -> asyncio.subprocess.Process:
        shown = await package_layers.folders_of(spec.project, network=spec.network, variables=spec.fetching)
        await asyncio.to_thread(_make_bundle, self._place(name), spec, token, shown)
        group = self._cgroups.make(spec.limits)
        joins = group.open_for_joining() if group else []
        if group is not None:
            self._groups[name] = group

        def begin() -> None:
            linux.die_with_parent()
            for fd in joins:
                os.write(fd, b"0")

        try:
            return await asyncio.create_subprocess_exec(
                *self._command(name), "run", "--bundle", str(self._place(name)), name,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log_file, cwd="/",
                preexec_fn=begin,
            )  # fmt: skip
        finally:
            for fd in joins:
                os.close(fd)

    def _command(self, name: str) -> list[str]:
        own = ["--rootless"] if os.geteuid() else []
        return [
            self._runsc, *own, "--root", str(self._place(name) / "state"), "--network=none", "--host-uds=create",
            "--overlay2=root:memory", "--ignore-cgroups",
        ]  # fmt: skip

    async def stop(self, ref: SandboxRef) -> None:
        await super().stop(ref)
        place = self._place(ref.id)
        if not place.is_dir():
            return
        with contextlib.suppress(OSError):
            await run_async([*self._command(ref.id), "delete", "--force", ref.id])
        await asyncio.to_thread(remove_tree, place)
        group = self._groups.pop(ref.id, None)
        if group is not None:
            group.remove()

    async def close(self) -> None:
        await super().close()
        self._cgroups.remove()

    def usage(self, ref: SandboxRef) -> dict[str, Any]:
        group = self._groups.get(ref.id)
        return dict(group.usage()) if group else {}


def find_runsc() -> str:
    """Return the path of a usable ``runsc``.

    Raises:
        Unavailable: it is missing or too old.
    """
    found = shutil.which("runsc")
    if found is None:
        raise Unavailable("there is no runsc on the PATH; install gVisor, or use the native engine")
    if not run([found, "--host-uds=create", "--version"]).ok:
        raise Unavailable(
            f"{found} is too old: it cannot share a socket with the host (--host-uds); install a newer one"
        )
    return found


def _make_bundle(place: Path, spec: SandboxSpec, token: str, shown: list[str]) -> None:
    """Write an OCI bundle for ``runsc``: the sandbox's own files, and config.json. ``shown``: for imports."""
    root = place / "root"
    sockets = place / "s"
    for folder in (root, sockets, place / "state"):
        folder.mkdir(parents=True)
    withheld_at = _copy_project(spec, root)
    for path, text in rootfs.FILES.items():
        target = root / path[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        *(_fresh(path) for path in ("/dev", "/tmp", "/var/tmp", rootfs.HOME, "/dev/shm")),
        *_show_host(root, [*rootfs.SYSTEM, *rootfs.ETC, *rootfs.interpreter_paths(), *shown]),
        _bind(str(sockets), _SOCKETS, "rw"),
        _bind(str(root / rootfs.PROJECT[1:]), rootfs.SNAPSHOT, "ro"),  # changes below PROJECT stay in memory
    ]
    config = {
        "ociVersion": "1.0.0",
        "hostname": "sandbox",
        "root": {"path": str(root), "readonly": False},
        "mounts": mounts,
        "process": _process_config(spec, token, shown, withheld_at),
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]},
    }
    (place / "config.json").write_text(json.dumps(config))


def _copy_project(spec: SandboxSpec, root: Path) -> str:
    """Copy the project into a root. Return where its private files are in there, or ""."""
    project = root / rootfs.PROJECT[1:]
    if spec.files is None:
        shutil.copytree(spec.project, project, ignore=_LEFT_OUT, symlinks=True)
        if not private_folder.has_folder(str(project)):
            return ""
        (project / private_folder.FOLDER).rename(root / _WITHHELD[1:])
        return _WITHHELD  # the runtime reads it there, and removes it before it loads any code
    project.mkdir()
    for name in spec.files:
        source = spec.project / name
        if source.is_dir():
            shutil.copytree(source, project / name, ignore=_LEFT_OUT, symlinks=True)
        else:
            shutil.copyfile(source, project / name)
    return ""


def _show_host(root: Path, paths: list[str]) -> list[dict[str, Any]]:
    """Return read-only mounts of those paths of the host that exist; make links as the host has them."""
    mounts = []
    for path in paths:
        if os.path.islink(path):
            (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
            (root / path[1:]).symlink_to(os.readlink(path))
        elif os.path.exists(path):
            mounts.append(_bind(path, path, "ro"))
    return mounts


def _process_config(spec: SandboxSpec, token: str, shown: list[str], withheld_at: str) -> dict[str, Any]:
    variables = {
        "PATH": _PATH, "HOME": rootfs.HOME, "USER": "env", "LANG": "C.UTF-8", "TMPDIR": "/tmp",
        **({"PYTHONPATH": ":".join(shown)} if shown else {}), **spec.variables, "AENV_TOKEN": token,
    }  # fmt: skip
    code = Path(rootfs.PROJECT) / spec.code.relative_to(spec.project)
    command = [
        sys.executable, "-m", "aenv.main", str(code), "--uds", f"{_SOCKETS}/s", "--name", spec.name,
        "--grace", "1", "--snapshot", rootfs.SNAPSHOT, "--withheld", withheld_at, "--", *spec.arguments,
    ]  # fmt: skip
    limits = {"RLIMIT_NOFILE": spec.limits.open_files, "RLIMIT_CORE": 0, "RLIMIT_NPROC": spec.limits.processes}
    return {
        # The owner of the sandbox's files: a rootless sandbox has no other user. It has no capability.
        "user": {"uid": 0, "gid": 0},
        "args": command,
        "env": [f"{name}={value}" for name, value in variables.items()],
        "cwd": rootfs.PROJECT,
        "capabilities": {},
        "noNewPrivileges": True,
        "rlimits": [{"type": kind, "hard": most, "soft": most} for kind, most in limits.items()],
    }


def _bind(source: str, target: str, mode: str) -> dict[str, Any]:
    options = [mode, "rbind", "nosuid", "nodev"]
    return {"destination": target, "type": "bind", "source": source, "options": options}


def _fresh(path: str) -> dict[str, Any]:
    return {"destination": path, "type": "tmpfs", "source": "tmpfs", "options": ["nosuid"]}
