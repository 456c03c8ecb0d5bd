"""Whether a process that has run somebody's code can be forked into many that have nothing in common.

What a fork copies is memory. Threads are lost; children, descriptors and shared memory would be shared; files that the
code has written are not where its copies go; and random numbers that were drawn before the fork are everybody's.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, ClassVar

_LAYER = "/tmp"
"""A writable place. All of them are one file system, which tells how much is in it."""
_RANDOM_DEVICES = (os.makedev(1, 8), os.makedev(1, 9))
MOST_NAMES = 200
"""Who asks for more variables is taken to have asked for all."""


_WITHOUT_NEED = {"threading", "logging", "random", "concurrent.futures.thread", "asyncio.events"}
"""Modules whose fork handlers are not needed: they are about other threads, or an instance does the same itself."""
_to_notify: list[str] = []


def record_fork_handlers() -> None:
    """Record from now on which modules register handlers with `os.register_at_fork`."""
    register = os.register_at_fork

    @functools.wraps(register)
    def noted(**handlers: Any) -> None:
        module = sys._getframe(1).f_globals.get("__name__", "?")
        if module not in _WITHOUT_NEED:
            _to_notify.append(module)
        register(**handlers)

    os.register_at_fork = noted


def modules_to_notify() -> list[str]:
    """Return the modules whose fork handlers have to run when this process is forked."""
    return _to_notify


class Watch:
    """Watches the code that runs within ``with``; `why_not` tells what speaks against forking.

    Random numbers are noticed where Python draws them: its own functions, those of OpenSSL, and files that are random
    devices. What native code draws by itself is not noticed, and what packages draw is not counted: numpy, sympy and
    multiprocessing do when they are imported. An environment for which that matters sets ``deployConfig.fork``.
    """

    current: ClassVar[Watch | None] = None

    def __enter__(self) -> Watch:
        self._random_asked_for = False
        self._files = _descriptors()
        self._layer = _used()
        self._drawn = _generators()
        self._replaced: list[tuple[Any, str, Any]] = []
        self._replace(os, "urandom", self._noting)
        self._replace(random, "_urandom", self._noting)
        self._replace(os, "getrandom", self._noting)
        for name in ("RAND_bytes", "RAND_priv_bytes", "RAND_pseudo_bytes"):
            for module in _openssl():
                self._replace(module, name, self._noting)
        for module, name in ((builtins, "open"), (io, "open"), (os, "open")):
            self._replace(module, name, self._noting_devices)
        self._replace(random.Random, "seed", self._noting_seeds)
        Watch.current = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        Watch.current = None
        for place, name, before in self._replaced:
            setattr(place, name, before)
        ssl = sys.modules.get("ssl")  # which takes these names when it is imported
        for module, name, before in self._replaced:
            if module.__name__ == "_ssl" and hasattr(ssl, name):
                setattr(ssl, name, before)

    def packages_are_imported(self) -> None:
        """Count random numbers from here on only."""
        self._drawn = _generators()  # which imports numpy.random, where numpy is there
        self._random_asked_for = False

    def _replace(self, place: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        before = getattr(place, name, None)
        if before is not None:
            self._replaced.append((place, name, before))
            setattr(place, name, wrap(before))

    def _noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **named: Any) -> Any:
            self._random_asked_for = True
            return function(*arguments, **named)

        return noted

    def _noting_devices(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def noted(path: Any, *arguments: Any, **named: Any) -> Any:
            self._random_asked_for |= _is_random_device(path)
            return function(path, *arguments, **named)

        return noted

    def _noting_seeds(self, seed: Callable[..., Any]) -> Callable[..., Any]:
        watch = self

        def noted(self: random.Random, a: Any = None, version: int = 2) -> None:
            watch._random_asked_for |= a is None
            seed(self, a, version)

        return noted

    def why_not(self) -> str | None:
        """A reason, or None when the process can be forked."""
        if not alone():
            return "it left threads running"
        if has_children():
            return "it left processes running"
        if _descriptors() != self._files:
            return "it left files or sockets open"
        if _shared_memory():
            return "it shares memory"
        if _used() != self._layer:
            return "it wrote files"
        if self._random_asked_for or _generators() != self._drawn:
            return "it drew random numbers"
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
        self._native, self._children = _mapped(), _of_children()
        self._own = {name: getattr(os._Environ, name) for name in ("__getitem__", "__setitem__", "__delitem__")}
        self._iterate = os._Environ.__iter__
        for name, method in self._own.items():
            setattr(os._Environ, name, self._noting(method))
        noted, iterate = self, self._iterate

        def all_of_them(self: os._Environ[Any]) -> Iterator[Any]:
            noted._all = True
            return iterate(self)

        os._Environ.__iter__ = all_of_them  # type: ignore[method-assign]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._plain:
            return
        for name, method in self._own.items():
            setattr(os._Environ, name, method)
        os._Environ.__iter__ = self._iterate  # type: ignore[method-assign]
        # What programs and native code ask for, nobody sees.
        self._all = self._all or _mapped() != self._native or _of_children() != self._children

    def _noting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def noted(environ: Any, name: Any, *value: Any) -> Any:
            if isinstance(name, str | bytes):
                self._names.add(os.fsdecode(name))
            return method(environ, name, *value)

        return noted

    @property
    def names(self) -> list[str] | None:
        """None: it may have seen all of them."""
        return None if self._all or len(self._names) > MOST_NAMES else sorted(self._names)


def _openssl() -> list[Any]:
    """The modules that offer OpenSSL's random numbers; none in a Python without."""
    try:
        import _ssl
    except ImportError:
        return []
    return [_ssl, *([sys.modules["ssl"]] if "ssl" in sys.modules else [])]


def _is_random_device(path: Any) -> bool:
    try:
        if not os.fsdecode(path).endswith("random"):  # by whatever way it is named; a link to it is the author's secret
            return False
        return os.stat(path).st_rdev in _RANDOM_DEVICES
    except (TypeError, ValueError, OSError):
        return False


def alone() -> bool:
    """Whether this is the only thread, once those that are just ending have ended."""
    for _ in range(100):
        if len(os.listdir("/proc/self/task")) == 1:
            return True
        time.sleep(0.01)
    return False


def has_children() -> bool:
    """Whether this process has started any that it has not seen end."""
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


def _mapped() -> set[str]:
    """Native code that is loaded."""
    with open("/proc/self/maps") as file:
        return {line.split(maxsplit=5)[5] for line in file if " r-xp " in line and "/" in line}


def _of_children() -> tuple[float, int]:
    """Changes whenever a process has been waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime, used.ru_minflt


def _used() -> tuple[int, int]:
    about = os.statvfs(_LAYER)
    return about.f_bfree, about.f_ffree


def _generators() -> tuple[Any, ...]:
    """The states of the generators that everybody shares."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "random"):
        return (random.getstate(),)
    return random.getstate(), numpy.random.get_state(legacy=True)[1].tobytes()
