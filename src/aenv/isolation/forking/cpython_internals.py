"""The one gate for code that relies on private parts of CPython or asyncio.

`is_tested` is true for the versions that the test suite runs on. Others take the plain way, which is slower and uses
public interfaces only, until they are tested. What depends on it:

| code | private part | plain way |
|---|---|---|
| `preloaded.serve_forks` | forks without ``PyOS_AfterFork_Child`` | it is called, as `os.fork` does |
| `aenv.runtime.forking.forked_loop` | an event loop goes on in a fork: its selector and self-pipe | a new loop |
| `aenv.runtime.sandboxed` | ``Thread._set_native_id`` after such a fork | ``PyOS_AfterFork`` does it |
| `forkable.VariablesRead` | methods of ``os._Environ`` are replaced | an import counts as reading all variables |
| `aenv.runtime.orphans` | ``_posixsubprocess.fork_exec`` is replaced | orphans are not reaped |
| `aenv.runtime.serve` | ``loop._signal_handlers`` is changed | a signal during the exit may change the exit code |

`aenv.http.client`, which is below this module, clears ``_sock`` of a transport whose loop is closed, where there is
such an attribute; without it, asyncio closes the socket later, with a warning.

The engine decides, with the Python that it runs on, and tells zygotes and sandboxes: they run on the same. A test
forces the plain way with the ``plain`` argument of `aenv.engines.native.engine.NativeEngine`.
"""

from __future__ import annotations

import sys

TESTED = frozenset(((3, 11), (3, 12), (3, 13)))
"""Versions of CPython whose private parts are known to be as this package expects them."""


def is_tested(version: tuple[int, ...] = sys.version_info[:2], implementation: str = sys.implementation.name) -> bool:
    """Return whether this Python may take the fast way."""
    return implementation == "cpython" and version[:2] in TESTED
