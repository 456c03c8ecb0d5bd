"""Environment that runs code of a test inside an instance."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import time
from typing import Any

from aenv import register_tool

LOADED_AT = time.monotonic()


@register_tool
def python(code: str) -> dict[str, Any]:
    """Run code in the instance's own process; return its variable ``result``, or the error."""
    scope: dict[str, Any] = {}
    try:
        exec(code, scope)
    except Exception as error:
        number = getattr(error, "errno", None)
        return {"raised": errno.errorcode.get(number, "") or type(error).__name__, "text": repr(error)}
    return {"value": scope.get("result")}


@register_tool
def forked(code: str) -> dict[str, Any]:
    """Run code in a forked child; return its result, the error, or the signal that ended it."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with os.fdopen(theirs, "w") as answer:
                json.dump(python(code), answer)
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as answer:
        said = answer.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return {"raised": f"signal {os.WTERMSIG(status)}", "text": said}
    return dict(json.loads(said))


@register_tool
def syscall(number: int, arguments: list[int]) -> dict[str, Any]:
    """Make a system call in a forked child, which it may kill."""
    call = (
        f"ctypes.CDLL(None, use_errno=True).syscall({', '.join(f'ctypes.c_long({n})' for n in (number, *arguments))})"
    )
    return forked(
        f"import ctypes, os\nresult = {call}\nif result < 0:\n    raise OSError(ctypes.get_errno(), 'refused')\n"
    )


@register_tool
def shell(command: str) -> dict[str, Any]:
    """Run a shell command."""
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, errors="replace", check=False)
    return {"code": done.returncode, "out": done.stdout, "err": done.stderr}


@register_tool
async def late(begin: str, thread: str) -> int:
    """Return the exit code of a child some time after it has ended; ``begin`` starts it, as ``p`` or ``pid``."""
    scope: dict[str, Any] = {}
    if thread == "first":
        exec(begin, scope)
    else:
        await asyncio.to_thread(exec, begin, scope)
    await asyncio.sleep(1.2)  # longer than the reaper leaves orphans
    if "pid" in scope:
        return os.waitstatus_to_exitcode(os.waitpid(scope["pid"], 0)[1])  # noqa: ASYNC222 - it has ended already
    process = scope["p"]
    if hasattr(process, "join"):
        process.join()
        return int(process.exitcode)
    return int(process.wait())


@register_tool
def hello() -> str:
    """Return a greeting."""
    return "hello"
