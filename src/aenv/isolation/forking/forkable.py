"""Detect what makes a process unfit for forking after it has imported foreign code.

A fork copies memory only. Threads are lost. Children, descriptors and shared memory would be shared. Files that the
code has written are not in the file systems of the forks. Random numbers that were drawn before are the same in all
forks.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, ClassVar

from aenv.isolation.files import rootfs

_LAYER = "/tmp"
"""A writable folder. All of them are on one file system, whose free space shows whether anything was written."""
_RANDOM_DEVICES = (os.makedev(1, 8), os.makedev(1, 9))
MOST_NAMES = 200
"""Variables that an import may read by name. More count as all of them."""


_WITHOUT_NEED = {"threading", "logging", "random", "concurrent.futures.thread", "asyncio.events"}
"""Modules whose fork handlers are not needed: they are about other threads, or an instance does the same itself."""
_to_notify: list[str] = []


def record_fork_handlers() -> None:
    """Record from now on which modules register handlers with `os.register_at_fork`."""
    register = os.register_at_fork

    @functools.wraps(register)
    def recorded(**handlers: Any) -> None:
        module = sys._getframe(1).f_globals.get("__name__", "?")
        if module not in _WITHOUT_NEED:
            _to_notify.append(module)
        register(**handlers)

    os.register_at_fork = recorded


def modules_to_notify() -> list[str]:
    """Return the modules whose fork handlers have to run when this process is forked."""
    return _to_notify


class ForkWatch:
    """Observes the code that runs within ``with``; `unfit_reason` says why the process must not be forked.

    Random numbers are noticed where Python draws them: its own functions, those of OpenSSL, and random devices. Those
    that native code draws by itself are not noticed, and those that packages draw at their import are not counted:
    numpy, sympy and multiprocessing do. An environment for which that matters sets ``deployConfig.fork`` to false.
    The name of the file with which `tempfile` tries the temporary folder does not count: it is removed at once.
    """

    current: ClassVar[ForkWatch | None] = None

    def __enter__(self) -> ForkWatch:
        self._random_drawn = False
        self._drawn_at = ""
        self._files = _descriptors()
        self._layer = _free_space()
        self._drawn = _generators()
        self._replaced: list[tuple[Any, str, Any]] = []
        self._replace(os, "urandom", self._recording)
        self._replace(random, "_urandom", self._recording)
        self._replace(os, "getrandom", self._recording)
        for name in ("RAND_bytes", "RAND_priv_bytes", "RAND_pseudo_bytes"):
            for module in _openssl():
                self._replace(module, name, self._recording)
        for module, name in ((builtins, "open"), (io, "open"), (os, "open")):
            self._replace(module, name, self._recording_devices)
        self._replace(random.Random, "seed", self._recording_seeds)
        self._replace(tempfile, "_get_default_tempdir", self._not_recording)
        ForkWatch.current = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ForkWatch.current = None
        for place, name, before in self._replaced:
            setattr(place, name, before)
        ssl = sys.modules.get("ssl")  # it copies these names when it is imported
        for module, name, before in self._replaced:
            if module.__name__ == "_ssl" and hasattr(ssl, name):
                setattr(ssl, name, before)

    def packages_are_imported(self) -> None:
        """Count random numbers from now on only."""
        self._drawn = _generators()  # which imports numpy.random, where numpy is there
        self._random_drawn = False

    def _replace(self, place: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        before = getattr(place, name, None)
        if before is not None:
            self._replaced.append((place, name, before))
            setattr(place, name, wrap(before))

    def _recording(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*arguments: Any, **named: Any) -> Any:
            self._draw()
            return function(*arguments, **named)

        return recorded

    def _not_recording(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def unrecorded(*arguments: Any, **named: Any) -> Any:
            before = self._random_drawn, self._drawn_at
            try:
                return function(*arguments, **named)
            finally:
                self._random_drawn, self._drawn_at = before

        return unrecorded

    def _draw(self) -> None:
        """Record that random numbers were drawn, and by which line of the project."""
        if not self._random_drawn:
            self._random_drawn, self._drawn_at = True, _project_line()

    def _recording_devices(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def recorded(path: Any, *arguments: Any, **named: Any) -> Any:
            if _is_random_device(path):
                self._draw()
            return function(path, *arguments, **named)

        return recorded

    def _recording_seeds(self, seed: Callable[..., Any]) -> Callable[..., Any]:
        watch = self

        def recorded(self: random.Random, a: Any = None, version: int = 2) -> None:
            if a is None:
                watch._draw()
            seed(self, a, version)

        return recorded

    def unfit_reason(self) -> str | None:
        """Return why the process must not be forked; None if it can be."""
        if not alone():
            return "it left threads running"
        if has_children():
            return "it left processes running"
        if _descriptors() != self._files:
            return "it left files or sockets open"
        if _shared_memory():
            return "it shares memory"
        if _free_space() != self._layer:
            return "it wrote files"
        if self._random_drawn or _generators() != self._drawn:
            return f"it drew random numbers{self._drawn_at}"
        return None


class VariablesRead:
    """Records which environment variables the code within ``with`` reads or sets.

    ``plain``: replace nothing, and assume that it reads all of them; see `cpython_internals`.
    """

    def __init__(self, *, plain: bool = False) -> None:
        self._names: set[str] = set()
        self._plain = plain
        self._all = plain

    def __enter__(self) -> VariablesRead:
        if self._plain:
            return self
        self._native, self._children = _native_code(), _children_usage()
        self._own = {name: getattr(os._Environ, name) for name in ("__getitem__", "__setitem__", "__delitem__")}
        self._iterate = os._Environ.__iter__
        for name, method in self._own.items():
            setattr(os._Environ, name, self._recording(method))
        reader, iterate = self, self._iterate

        def iterate_all(self: os._Environ[Any]) -> Iterator[Any]:
            reader._all = True
            return iterate(self)

        os._Environ.__iter__ = iterate_all  # type: ignore[method-assign]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._plain:
            return
        for name, method in self._own.items():
            setattr(os._Environ, name, method)
        os._Environ.__iter__ = self._iterate  # type: ignore[method-assign]
        # Reads of other programs and of native code cannot be observed.
        self._all = self._all or _native_code() != self._native or _children_usage() != self._children

    def _recording(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(environ: Any, name: Any, *value: Any) -> Any:
            if isinstance(name, str | bytes):
                self._names.add(os.fsdecode(name))
            return method(environ, name, *value)

        return recorded

    @property
    def names(self) -> list[str] | None:
        """The names in order; None: maybe all variables were read."""
        return None if self._all or len(self._names) > MOST_NAMES else sorted(self._names)


def _openssl() -> list[Any]:
    """Return the modules with OpenSSL's random numbers; none if Python is built without it."""
    try:
        import _ssl
    except ImportError:
        return []
    return [_ssl, *([sys.modules["ssl"]] if "ssl" in sys.modules else [])]


def _is_random_device(path: Any) -> bool:
    try:
        if not os.fsdecode(path).endswith("random"):  # under any folder; a link with another name is not noticed
            return False
        return os.stat(path).st_rdev in _RANDOM_DEVICES
    except (TypeError, ValueError, OSError):
        return False


def _project_line() -> str:
    """Return the innermost line of the project that is being executed, as " (file.py, line 3)", if there is one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if rootfs.is_below(name, (rootfs.PROJECT, rootfs.SNAPSHOT)):
            return f" ({name.removeprefix(rootfs.PROJECT).removeprefix(rootfs.SNAPSHOT)[1:]}, line {frame.f_lineno})"
        frame = frame.f_back
    return ""


def alone() -> bool:
    """Return whether this is the only thread. Wait up to a second for threads that are ending."""
    for _ in range(100):
        if len(os.listdir("/proc/self/task")) == 1:
            return True
        time.sleep(0.01)
    return False


def has_children() -> bool:
    """Return whether this process has a child that was not reaped."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def _descriptors() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except OSError:  # the listing's own
            continue
    return found


def _shared_memory() -> bool:
    with open("/proc/self/maps") as file:
        return any(line.split(maxsplit=2)[1] == "rw-s" for line in file)


def _native_code() -> set[str]:
    """Return the native code that is loaded."""
    with open("/proc/self/maps") as file:
        return {line.split(maxsplit=5)[5] for line in file if " r-xp " in line and "/" in line}


def _children_usage() -> tuple[float, int]:
    """Return a value that changes when a child is reaped."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime, used.ru_minflt


def _free_space() -> tuple[int, int]:
    about = os.statvfs(_LAYER)
    return about.f_bfree, about.f_ffree


def _generators() -> tuple[Any, ...]:
    """Return the states of the global random generators."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "random"):
        return (random.getstate(),)
    return random.getstate(), numpy.random.get_state(legacy=True)[1].tobytes()
