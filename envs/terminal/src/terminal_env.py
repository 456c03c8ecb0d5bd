"""Terminal-Bench: an agent types into a terminal, and a task's own tests say what came of it.

Tasks are folders below T_BENCH_TASKS_DIR, as Terminal-Bench 1 has them: task.yaml, run-tests.sh and tests/. In a
sandbox the tests are taken out of the agent's sight when the environment is loaded, and put back for themselves alone.
"""

import asyncio
import os
import subprocess
import threading

from grading import Tasks, grade, sandboxed

from aenv import Pane, register_reward, register_tool

TASKS = os.environ.get("T_BENCH_TASKS_DIR", "/data/tb")
MOST_WAIT = 300.0
# $0 is the terminal: the first that the leader of a session opens becomes its controlling one.
ON_TERMINAL = 'exec <>"$0" >&0 2>&0; exec bash --norc --noprofile -i'

tasks = Tasks(TASKS, hide=sandboxed())
_grading = threading.Lock()
_shown: list[Pane] = []
_shells: list[subprocess.Popen[bytes]] = []


def _pane() -> Pane:
    """The terminal; a new one where there is none, or the last has ended. While tests run there is none."""
    if _grading.locked():
        raise RuntimeError("the task is being graded: the terminal is closed until that is done")
    if _shown and not _shown[0].ended:
        return _shown[0]
    master, slave = os.openpty()
    try:
        variables = {**os.environ, "TERM": "xterm", "PS1": "\\w\\$ "}
        name = os.ttyname(slave)
        nowhere = subprocess.DEVNULL
        shell = subprocess.Popen(
            ["bash", "-c", ON_TERMINAL, name],
            stdin=slave,  # a terminal that nobody has open has hung up
            stdout=nowhere,
            stderr=nowhere,
            env=variables,
            start_new_session=True,
        )
    finally:
        os.close(slave)
    _shells[:] = [shell]
    _shown[:] = [Pane(master)]
    return _shown[0]


@register_tool
async def keystrokes(keystrokes: str, append_enter: bool = False, wait_time_sec: float = 0.0) -> str:
    """Type into the terminal, and see what it shows.

    Args:
        keystrokes: A text, or the name of a key as tmux has it, like C-c, Enter or Up.
        append_enter: Press Enter after it.
        wait_time_sec: How long to wait before looking.
    """
    pane = _pane()
    pane.type(keystrokes)
    if append_enter:
        pane.type("Enter")
    await asyncio.sleep(min(max(wait_time_sec, 0.0), MOST_WAIT))
    return pane.text()


@register_tool
async def capture_pane(wait_before_capture_sec: float = 0.0) -> str:
    """See what the terminal shows.

    Args:
        wait_before_capture_sec: How long to wait before looking.
    """
    pane = _pane()
    await asyncio.sleep(min(max(wait_before_capture_sec, 0.0), MOST_WAIT))
    return pane.text()


@register_reward
async def caculate_reward(task_name: str) -> dict:
    """Run a task's tests on what the agent has done. The name is written as existing code calls it.

    Args:
        task_name: The task's folder.
    """
    if not _grading.acquire(blocking=False):
        raise RuntimeError("a task is being graded already")
    try:
        for pane in _shown:
            pane.close()
        _shown.clear()
        return await asyncio.to_thread(grade, tasks, task_name)
    finally:
        _grading.release()
