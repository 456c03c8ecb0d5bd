"""Programs that are run to their end: their output, and that none is left behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from aenv.subprocesses import CompletedProgram, run, run_async
from tests.waiting import PATIENCE, wait_until, wait_while

HANGS = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
FORKS = (
    "import os, sys, time\n"
    "if os.fork() == 0:\n"
    "    os.close(1); os.close(2)\n"
    "    open(sys.argv[1] + '.new', 'w').write(str(os.getpid())); os.rename(sys.argv[1] + '.new', sys.argv[1])\n"
    "    time.sleep(600)\n"
    "while not os.path.exists(sys.argv[1]):\n"
    "    time.sleep(0.01)\n"
)


def both(*command: str, stderr: int | None = subprocess.PIPE) -> list[CompletedProgram]:
    return [run(command, stderr=stderr), asyncio.run(run_async(command, stderr=stderr))]


def test_a_program_returns_its_exit_code_and_both_outputs() -> None:
    for done in both("sh", "-c", "echo out; echo err >&2; exit 3"):
        assert (done.ok, done.code, done.stdout, done.stderr) == (False, 3, "out\n", "err\n")
        assert done.tail() == "err"
        with pytest.raises(subprocess.CalledProcessError, match="exit status 3"):
            done.checked()


def test_a_program_that_writes_no_text_is_read_all_the_same() -> None:
    for done in both("printf", r"a\377b"):
        assert done.checked().stdout == "a�b"


def test_a_merged_output_is_quoted_at_its_end() -> None:
    for done in both("sh", "-c", "echo one >&2; echo two", stderr=subprocess.STDOUT):
        assert (done.stdout, done.stderr, done.tail(3)) == ("one\ntwo\n", "", "two")


def test_a_program_reads_what_it_is_given_and_nothing_else() -> None:
    assert run(["cat"], stdin="given").stdout == "given"
    assert [done.stdout for done in both("cat")] == ["", ""]


def test_a_program_that_does_not_exist_is_an_os_error() -> None:
    with pytest.raises(FileNotFoundError):
        run(["/nowhere/at-all"])
    with pytest.raises(FileNotFoundError):
        asyncio.run(run_async(["/nowhere/at-all"]))


def gone(file: Path) -> None:
    wait_while(Path(f"/proc/{file.read_text()}").exists, "the program is left running")


def test_a_program_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match=r"^sleep did not end within 0\.1 s$"):
        run(["sleep", "600"], timeout=0.1)
    with pytest.raises(TimeoutError, match=r"^sleep did not end within 0\.1 s$"):
        asyncio.run(run_async(["sleep", "600"], timeout=0.1))


def test_a_program_whose_caller_is_cancelled_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "pid"

    async def main() -> None:
        running = asyncio.ensure_future(run_async([sys.executable, "-c", HANGS, str(file)]))
        await wait_until(lambda: file.exists() and file.read_text())
        running.cancel()
        await asyncio.wait({running}, timeout=PATIENCE)
        assert running.cancelled()

    asyncio.run(main())
    gone(file)


def test_a_group_ends_with_its_leader(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    done = asyncio.run(run_async([sys.executable, "-c", FORKS, str(file)], own_group=True, timeout=PATIENCE))
    assert done.ok
    gone(file)
