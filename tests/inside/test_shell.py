"""`aenv instance shell` on a real terminal, on this machine and through a platform."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
import termios
from collections.abc import AsyncIterator

import pytest

from aenv.sdk.environment import Environment
from aenv.terminal.pane import Pane
from tests.conftest import run
from tests.inside.conftest import Place
from tests.waiting import PATIENCE, wait_until

ROWS, COLUMNS = 30, 100


class Session:
    """A program on a terminal of this test."""

    def __init__(self, words: list[str], variables: dict[str, str], size: tuple[int, int] = (ROWS, COLUMNS)) -> None:
        self._master, slave = os.openpty()
        self.pane = Pane(self._master, ROWS, COLUMNS)
        self.resize(*size)
        # The shell opens the terminal in its new session, which makes it the controlling one.
        line = ["/bin/sh", "-c", 'exec "$@" <>"$0" >&0 2>&0', os.ttyname(slave)]
        env = {**os.environ, "TERM": "xterm", **variables}
        self.process = subprocess.Popen([*line, *words], env=env, start_new_session=True, stdin=subprocess.DEVNULL)
        self._slave = slave

    async def shows(self, text: str) -> str:
        """Wait until the screen shows something."""
        try:
            await wait_until(lambda: text in self.pane.text(), 2 * PATIENCE)
        except TimeoutError:
            raise AssertionError(f"the screen does not show {text!r}:\n{self.pane.text()}") from None
        return self.pane.text()

    def enter(self, line: str) -> None:
        self.pane.type(line)
        self.pane.type("Enter")

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def is_raw(self) -> bool:
        return not termios.tcgetattr(self._slave)[3] & termios.ICANON

    async def ends(self) -> int:
        await wait_until(lambda: self.pane.text() is not None and self.process.poll() is not None)
        return self.process.returncode

    def close(self) -> None:
        self.pane.close()
        os.close(self._slave)
        self.process.kill()
        self.process.wait()


@contextlib.asynccontextmanager
async def shell(
    place: Place, *more: str, size: tuple[int, int] = (ROWS, COLUMNS)
) -> AsyncIterator[tuple[Session, Environment]]:
    async with place.environment() as env:
        info = await env.get_env_info()
        session = Session(place.command("instance", "shell", info["instance_id"], *more), place.variables, size)
        try:
            yield session, env
        finally:
            session.close()


@pytest.mark.long
def test_a_shell_has_a_terminal_of_the_right_size_and_passes_its_exit_code_on(place: Place) -> None:
    async def main() -> None:
        async with shell(place) as (session, _):
            await session.shows("$")
            assert session.is_raw()
            session.enter("stty size; tty; id -u")
            await session.shows("30 100")
            await session.shows("/dev/pts/")
            session.resize(20, 90)
            session.enter("until stty size | grep -q '20 90'; do :; done; echo re''sized")
            await session.shows("resized")
            session.enter("exit 7")
            assert await session.ends() == 7
            assert not session.is_raw()

    run(main())


def test_a_terminal_that_does_not_know_its_size_gets_a_usual_one(place: Place) -> None:
    """Serial lines and terminals of CI systems have 0 rows and 0 columns."""

    async def main() -> None:
        async with shell(place, size=(0, 0)) as (session, _):
            await session.shows("$")
            session.enter("stty size; exit 3")
            await session.shows("24 80")
            assert await session.ends() == 3

    run(main())


def test_ctrl_c_interrupts_the_program_and_not_the_shell(place: Place) -> None:
    async def main() -> None:
        async with shell(place) as (session, _):
            await session.shows("$")
            session.enter("sh -c 'echo run\"\"ning; exec sleep 600'")  # printed by the job that is in the foreground
            await session.shows("running")
            session.pane.type("C-c")
            session.enter("echo co''de $?")
            await session.shows("code 130")
            session.pane.type("C-d")
            await session.ends()

    run(main())


def test_vim_edits_a_file_on_the_full_screen(place: Place) -> None:
    editor = next((name for name in ("vim.tiny", "vim", "vi") if shutil.which(name)), None)
    if editor is None:
        pytest.skip("no vim on this machine; apt install vim-tiny")

    async def main() -> None:
        async with shell(place) as (session, env):
            await session.shows("$")
            session.enter(f"{editor} -u NONE -N /tmp/note.txt")
            await session.shows("[New")
            await wait_until(lambda: session.pane.text().count("\n~") > 20)  # it fills the screen
            session.pane.type("i")
            session.pane.type("written in vim")
            session.pane.type("Escape")
            session.enter(":wq")
            await wait_until(lambda: "\n~" not in session.pane.text())  # the screen is as before
            session.enter("cat /tmp/note.txt")
            await session.shows("written in vim")
            assert (await env.files.read_text("/tmp/note.txt")) == "written in vim\n"

    run(main())


def test_a_shell_whose_terminal_closes_leaves_no_process(place: Place) -> None:
    async def main() -> None:
        async with shell(place) as (session, env):
            await session.shows("$")
            session.enter("trap '' HUP; sleep 601 & sleep 602")
            assert (await env.exec("until pgrep -f 'sleep 60[2]' >/dev/null; do sleep 0.05; done")).exit_code == 0
            session.pane.close()
            gone = "while pgrep -f 'sleep 60[12]' >/dev/null; do sleep 0.05; done"
            assert (await env.exec(gone)).exit_code == 0
            assert await env.processes() == []

    run(main())


def test_enter_tilde_dot_disconnects(local: Place) -> None:
    async def main() -> None:
        async with shell(local) as (session, _):
            await session.shows("$")
            session.enter("stty raw -echo; cat >/dev/null")
            session.pane.type("Enter")
            await asyncio.sleep(0)
            session.pane.type("~.")
            assert await session.ends() == 1
            assert "Disconnected" in session.pane.text()
            assert not session.is_raw()

    run(main())


def test_a_shell_is_found_by_the_name_of_its_environment(remote: Place) -> None:
    async def main() -> None:
        async with remote.environment():
            session = Session(remote.command("instance", "shell", "inside", "echo", "he re"), remote.variables)
            try:
                await session.shows("he re")
                assert await session.ends() == 0
            finally:
                session.close()
            done = await asyncio.to_thread(remote.aenv, "instance", "exec", "insid", "true", code=1)
            assert b"did you mean inside?" in done.stderr
            async with remote.environment():
                done = await asyncio.to_thread(remote.aenv, "instance", "exec", "inside", "true", code=2)
                assert b"several instances" in done.stderr
        done = await asyncio.to_thread(remote.aenv, "instance", "exec", "inside", "true", code=1)
        assert b"no running instance" in done.stderr

    run(main())


def test_a_shell_without_a_terminal_is_refused(local: Place) -> None:
    assert b"must be a terminal" in local.aenv("instance", "shell", "x", code=2).stderr
